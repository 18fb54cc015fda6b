"use strict";
// Draws the plots of a report from the JSON in the page. Texts from users only ever become text nodes.
(() => {
  const { parts, photos } = JSON.parse(document.getElementById("data").textContent);

  // Elements, numbers and the tooltip.

  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };
  const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const known = (value) => value !== null && value !== undefined;
  const number = (value, digits = 1) => (known(value) ? value.toFixed(digits) : "–");
  const spread = (value, deviation) => number(value) + (known(deviation) ? ` ± ${number(deviation)}` : "");
  const shorten = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

  const tip = document.getElementById("tip");
  const hideTip = () => { tip.hidden = true; };
  const showTip = (x, y, ...content) => {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    tip.style.left = `${Math.max(6, Math.min(left, innerWidth - width - 6))}px`;
    tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - height - 6))}px`;
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });

  // Markers and colours, as in the registry of methods.

  const ring = (n, turn, radius = () => 1) =>
    Array.from({ length: n }, (_, k) => {
      const angle = ((turn + (360 * k) / n) * Math.PI) / 180;
      return [radius(k) * Math.cos(angle), radius(k) * Math.sin(angle)];
    });
  const CROSS = [[-.35, -1], [.35, -1], [.35, -.35], [1, -.35], [1, .35], [.35, .35], [.35, 1], [-.35, 1], [-.35, .35], [-1, .35], [-1, -.35], [-.35, -.35]];
  const MARKERS = {
    o: ring(16, 0), s: ring(4, 45), D: ring(4, 0), "^": ring(3, -90), v: ring(3, 90), "<": ring(3, 180), ">": ring(3, 0),
    p: ring(5, -90), h: ring(6, -90), 8: ring(8, 22.5), "*": ring(10, -90, (k) => (k % 2 ? .45 : 1.2)),
    d: ring(4, 0).map(([x, y]) => [.6 * x, y]), P: CROSS, X: CROSS.map(([x, y]) => [(x - y) * .75, (x + y) * .75]),
  };
  const DASHES = { "-": null, "--": "7 4", ":": "2 3" };
  const marker = (kind, x, y, r = 4.2) =>
    s("path", { d: `M${(MARKERS[kind] ?? MARKERS.o).map(([a, b]) => `${(x + r * a).toFixed(1)} ${(y + r * b).toFixed(1)}`).join("L")}Z` });
  const inked = (method, tag, attributes, ...children) =>
    s(tag, { ...attributes, class: `ink ${attributes.class ?? ""}`, style: { "--c": method.colour } }, ...children);
  const swatch = (method) =>
    s("svg", { width: 28, height: 12, "aria-hidden": "true" },
      inked(method, "g", {},
        s("line", { x1: 0, x2: 28, y1: 6, y2: 6, "stroke-width": 2, "stroke-dasharray": DASHES[method.line] }),
        marker(method.marker, 14, 6)));

  const scale = (...colours) => {
    const stops = colours.map((hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)));
    const rgb = (value) => {
      const place = Math.max(0, Math.min(1, value)) * (stops.length - 1);
      const k = Math.min(Math.floor(place), stops.length - 2);
      return stops[k].map((one, c) => Math.round(one + (place - k) * (stops[k + 1][c] - one)));
    };
    const css = (value) => `rgb(${rgb(value).join()})`;
    const contrast = (value) => { const [r, g, b] = rgb(value); return .3 * r + .59 * g + .11 * b > 125 ? "#000" : "#fff"; };
    const bar = (low, high) => h("span", { class: "range" }, low, h("span", { class: "scale", style: { background: `linear-gradient(90deg, ${colours.join()})` } }), high);
    return { rgb, css, contrast, bar };
  };
  const CIVIDIS = scale("#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838");
  const DIVERGING = scale("#2d004b", "#70589f", "#bfbbda", "#f7f7f6", "#fdc57f", "#d0730f", "#7f3b08");

  // Tables that sort by a heading: highest first, then lowest first, then as before.

  const sortValue = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  const sortable = (table) => {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const sort = (column, order) => {
      heads.forEach((head, k) => (k === column && order ? head.setAttribute("aria-sort", order) : head.removeAttribute("aria-sort")));
      const sign = order === "ascending" ? 1 : -1;
      const ordered = !order ? rows : [...rows].sort((a, b) => {
        const [x, y] = [sortValue(a, column), sortValue(b, column)], [m, n] = [parseFloat(x), parseFloat(y)];
        if (isNaN(m) && isNaN(n)) return sign * -x.localeCompare(y);
        return isNaN(m) ? 1 : isNaN(n) ? -1 : sign * (m - n);
      });
      body.append(...ordered);
      body.classList.toggle("sorted", Boolean(order));
    };
    const next = { null: "descending", descending: "ascending", ascending: null };
    heads.forEach((head, column) => {
      const button = h("button", { type: "button", onclick: () => sort(column, next[head.getAttribute("aria-sort")]) }, ...head.childNodes);
      head.replaceChildren(button);
    });
  };

  // A plot of lines over the experiences.

  const niceTicks = (low, high, n = 8) => {
    const rough = (high - low || 1) / n, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
    const ticks = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + 1e-9; tick += step) ticks.push(tick);
    return ticks;
  };

  const lineChart = (box, { series, n, xLabel, yLabel, heading, label }) => {
    const width = Math.max(280, box.clientWidth), height = Math.max(250, Math.min(430, width * .5));
    const edge = { left: 46, right: 16, top: 12, bottom: 44 };
    const values = series.flatMap(({ y, deviation }) => y.flatMap((v, k) => (known(v) ? [v - (deviation?.[k] ?? 0), v + (deviation?.[k] ?? 0)] : [])));
    if (!values.length) { box.replaceChildren(h("p", { class: "note" }, "Nothing to show: switch a method on.")); return; }
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low || 1) * .05;
    const [bottom, top] = [low - pad, high + pad];
    const X = (k) => edge.left + (n === 1 ? .5 : k / (n - 1)) * (width - edge.left - edge.right);
    const Y = (v) => edge.top + (1 - (v - bottom) / (top - bottom)) * (height - edge.top - edge.bottom);
    const svg = s("svg", { width, height, tabindex: 0, role: "img", "aria-label": `${label}. Use the arrow keys to read values.` });
    for (const tick of niceTicks(bottom, top)) {
      svg.append(s("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: Y(tick), y2: Y(tick) }),
        s("text", { x: edge.left - 8, y: Y(tick) + 4, "text-anchor": "end" }, String(+tick.toFixed(6))));
    }
    const every = Math.ceil(n / Math.max(2, Math.floor(width / 42)));
    for (let k = 0; k < n; k += every) svg.append(s("text", { x: X(k), y: height - 24, "text-anchor": "middle" }, String(k + 1)));
    svg.append(s("text", { x: (edge.left + width - edge.right) / 2, y: height - 5, "text-anchor": "middle" }, xLabel),
      s("text", { transform: `translate(11 ${(height - edge.bottom) / 2 + 6}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
    const groups = series.map(({ method, y, deviation, level }) => {
      const points = y.flatMap((v, k) => (known(v) ? [[k, v]] : []));
      const at = level && points.length ? [[0, points[0][1]], [n - 1, points[0][1]]] : points;
      const path = at.map(([k, v]) => `${X(k).toFixed(1)} ${Y(v).toFixed(1)}`).join("L");
      const group = inked(method, "g", { "data-label": method.label });
      const bands = points.filter(([k]) => known(deviation?.[k]));
      if (bands.length && !level) {
        const upper = bands.map(([k, v]) => `${X(k)} ${Y(v + deviation[k])}`), lower = bands.map(([k, v]) => `${X(k)} ${Y(v - deviation[k])}`);
        group.append(s("path", { class: "band", d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }));
      }
      if (path) group.append(s("path", { class: "curve", d: `M${path}`, "stroke-dasharray": level ? "9 6" : DASHES[method.line] }));
      if (!level) group.append(...points.map(([k, v]) => marker(method.marker, X(k), Y(v))));
      svg.append(group);
      return group;
    });
    const rule = s("line", { class: "rule", y1: edge.top, y2: height - edge.bottom, visibility: "hidden" });
    svg.prepend(rule);
    let cursor = 0;
    const read = (k, clientX, clientY, height0) => {
      cursor = k;
      const here = series.map((one, i) => ({ ...one, i, v: one.level ? one.y.find(known) : one.y[k], d: one.level ? one.deviation.find(known) : one.deviation?.[k] })).filter(({ v }) => known(v));
      if (!here.length) { leave(); return; }
      here.sort((a, b) => b.v - a.v);
      const nearest = known(height0) ? here.reduce((a, b) => (Math.abs(Y(a.v) - height0) <= Math.abs(Y(b.v) - height0) ? a : b)) : null;
      groups.forEach((group, i) => group.classList.toggle("near", i === nearest?.i));
      if (nearest) svg.append(groups[nearest.i]);
      rule.setAttribute("x1", X(k)); rule.setAttribute("x2", X(k)); rule.setAttribute("visibility", "visible");
      const from = nearest ? Math.max(0, Math.min(here.indexOf(nearest) - 6, here.length - 13)) : 0;
      showTip(clientX, clientY, h("b", {}, heading(k)), h("table", {}, here.slice(from, from + 13).map(({ method, v, d, i }) =>
        h("tr", {}, h("td", {}, swatch(method)), h("td", {}, i === nearest?.i ? h("b", {}, method.name) : method.name), h("td", {}, spread(v, d))))),
        here.length > 13 ? h("i", {}, `${here.length - 13} more`) : "");
    };
    const leave = () => { hideTip(); rule.setAttribute("visibility", "hidden"); groups.forEach((group) => group.classList.remove("near")); };
    const point = (event) => {
      const box0 = svg.getBoundingClientRect(), x = event.clientX - box0.left;
      const k = n === 1 ? 0 : Math.round(((x - edge.left) / (width - edge.left - edge.right)) * (n - 1));
      read(Math.max(0, Math.min(n - 1, k)), event.clientX, event.clientY, event.clientY - box0.top);
    };
    const readCursor = () => { const box0 = svg.getBoundingClientRect(); read(cursor, box0.left + X(cursor), box0.top + 20); };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      cursor = Math.max(0, Math.min(n - 1, cursor + (tip.hidden ? 0 : step)));
      readCursor();
    });
    box.replaceChildren(svg);
  };

  // A matrix as a picture with one pixel per entry, so that hundreds of classes stay quick.

  const heatmap = (box, { values, rows, columns, colours, position, text, describe, breaks = [], columnBreaks = breaks, label, size }) => {
    const n = rows.length, m = columns.length;
    const side = size ?? Math.max(4, Math.min(26, Math.floor(Math.min(520, box.clientWidth - 110) / m)));
    const names = side >= 9, left = names ? 10 + 6.6 * Math.min(18, Math.max(...rows.map((r) => r.length))) : 6;
    const longest = Math.min(16, Math.max(...columns.map((c) => c.length))), upright = longest < 3;
    const head = names ? 10 + 6.2 * (upright ? 1.5 : longest) : 6;
    const canvas = h("canvas", { width: m, height: n }), context = canvas.getContext("2d");
    const pixels = context.createImageData(m, n);
    values.forEach((row, i) => row.forEach((value, j) => { if (known(value)) pixels.data.set([...colours.rgb(position(value)), 255], 4 * (i * m + j)); }));
    context.putImageData(pixels, 0, 0);
    const svg = s("svg", { width: left + m * side + 4, height: head + n * side + 4, tabindex: 0, role: "img", "aria-label": `${label}. Use the arrow keys to read values.` },
      s("image", { href: canvas.toDataURL(), x: left, y: head, width: m * side, height: n * side, preserveAspectRatio: "none", style: { "image-rendering": "pixelated" } }));
    const font = { "font-size": `${Math.min(12, side * .82)}px` };
    if (names) {
      rows.forEach((name, i) => svg.append(s("text", { x: left - 5, y: head + (i + .5) * side + 4, "text-anchor": "end", style: font }, shorten(name, 18))));
      columns.forEach((name, j) => svg.append(s("text", { transform: `translate(${left + (j + .5) * side + (upright ? 0 : 4)} ${head - 5}) rotate(${upright ? 0 : -90})`, "text-anchor": upright ? "middle" : "start", style: font }, shorten(name, 16))));
    }
    if (text && side >= 22) values.forEach((row, i) => row.forEach((value, j) => {
      if (known(value)) svg.append(s("text", { x: left + (j + .5) * side, y: head + (i + .5) * side + 4, "text-anchor": "middle", style: { fill: colours.contrast(position(value)), "font-size": "10.5px" } }, text(value)));
    }));
    for (const b of breaks) svg.append(s("line", { class: "border", x1: left, x2: left + m * side, y1: head + b * side, y2: head + b * side }));
    for (const b of columnBreaks) svg.append(s("line", { class: "border", y1: head, y2: head + n * side, x1: left + b * side, x2: left + b * side }));
    const mark = s("rect", { class: "cursor", width: side, height: side, visibility: "hidden" });
    svg.append(mark);
    let cursor = [0, 0];
    const read = (i, j, x, y) => {
      cursor = [i, j];
      mark.setAttribute("x", left + j * side); mark.setAttribute("y", head + i * side); mark.setAttribute("visibility", "visible");
      showTip(x, y, ...describe(i, j));
    };
    const leave = () => { hideTip(); mark.setAttribute("visibility", "hidden"); };
    const point = (event) => {
      const place = svg.getBoundingClientRect();
      const [i, j] = [Math.floor((event.clientY - place.top - head) / side), Math.floor((event.clientX - place.left - left) / side)];
      if (i >= 0 && i < n && j >= 0 && j < m && known(values[i][j])) read(i, j, event.clientX, event.clientY); else leave();
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const [di, dj] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
      if (di === undefined) return;
      event.preventDefault();
      const [i, j] = mark.getAttribute("visibility") === "hidden" ? cursor : [cursor[0] + di, cursor[1] + dj];
      if (!known(values[i]?.[j])) return;
      const place = svg.getBoundingClientRect();
      read(i, j, place.left + left + j * side, place.top + head + (i + 1) * side);
    });
    box.replaceChildren(svg);
  };

  const figure = (parent, ...caption) => {
    const box = h("div", { class: "map" });
    parent.append(h("figure", {}, h("figcaption", {}, ...caption), box));
    return box;
  };
  const select = (options, value, onchange) =>
    fill(h("select", { onchange: (event) => onchange(event.target.value) }), {}, options.map(([key, name]) => h("option", { value: key, selected: key === value }, name)));
  const slider = (min, max, step, value, oninput) =>
    h("input", { type: "range", min, max, step, value, oninput: (event) => oninput(+event.target.value) });

  // One part: all plots of the results of one stream.

  const build = (root, part, index) => {
    const { methods, classes, sizes, metrics } = part, n = sizes.length;
    const experienceOf = sizes.flatMap((size, t) => Array(size).fill(t));
    const breaks = sizes.slice(0, -1).reduce((all, size) => [...all, (all.at(-1) ?? 0) + size], []);
    const store = `report:${location.pathname}:${index}`;
    const end = (method) => method.nested[metrics[0]].at(-1).at(-1) ?? -1, rank = (method) => (method.acm ? 1000 : 0) + end(method);
    const first = methods.reduce((a, b) => (rank(b) > rank(a) ? b : a)).label; // the best of those with a correlation matrix
    const state = { shown: methods.filter((one) => one.shown).map((one) => one.label), metric: metrics[0], focus: first, threshold: .5 };
    try { Object.assign(state, JSON.parse(sessionStorage.getItem(store))); } catch { /* no storage for this page */ }
    const isShown = (method) => state.shown.includes(method.label);
    const byLabel = Object.fromEntries(methods.map((one) => [one.label, one])), byName = Object.fromEntries(methods.map((one) => [one.name, one]));
    if (!byLabel[state.focus]) state.focus = first;

    for (const table of root.querySelectorAll("table.sortable")) sortable(table);
    for (const table of root.querySelectorAll("table.compare")) {
      const rows = [...table.tBodies[0].rows];
      for (const { cells: [head] } of rows) if (byName[head.textContent]) head.prepend(swatch(byName[head.textContent]));
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const low = /forgetting/.test(head.textContent), cells = rows.map((row) => row.cells[column]);
        if (!column || rows.length < 2 || !/last|nested|forgetting/.test(head.textContent) || /paper/.test(head.textContent)) return;
        const values = cells.map((cell) => parseFloat(cell.textContent)), best = (low ? Math.min : Math.max)(...values.filter((v) => !isNaN(v)));
        cells.forEach((cell, k) => cell.classList.toggle("best", values[k] === best));
      });
    }

    // Plots that compare methods.
    const plots = root.querySelector('[data-view="plots"]');
    const chips = methods.map((method) => h("button", {
      type: "button", class: "chip", title: method.description, "data-label": method.label,
      onclick: () => { state.shown = isShown(method) ? state.shown.filter((one) => one !== method.label) : [...state.shown, method.label]; compare(); },
    }, swatch(method), method.name));
    const show = (labels) => () => { state.shown = labels; compare(); };
    const all = methods.map((one) => one.label);
    const curves = h("div", { class: "plot" }), forgetting = h("div", { class: "plot" }), heat = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "AP of each class" });
    const forgettingTitle = h("h3", {}, "Forgetting");
    plots.append(
      h("div", { class: "legend" },
        h("div", { class: "tools" },
          h("label", {}, "Score", select(metrics.map((one) => [one, one]), state.metric, (value) => { state.metric = value; compare(); detail(); })),
          h("button", { type: "button", onclick: show(all) }, "Show all"), h("button", { type: "button", onclick: show([]) }, "Hide all")),
        h("div", { class: "chips", role: "group", "aria-label": "Methods" }, chips)),
      h("h3", {}, "Learning curves"), h("p", { class: "note" }, "The score on the test images and classes of all experiences so far, with a band of one standard deviation over seeds. A method that trains once on everything is a dashed line."), curves,
      forgettingTitle, h("p", { class: "note" }, "How much the score on the nested test set of the first experiences has fallen since it was new, at the end of the run."), forgetting,
      h("h3", {}, "AP of each class"), h("p", { class: "note" }, "After the last experience, in percent. Rows are in the order of learning; select a heading to sort.", " ", CIVIDIS.bar("0", "100")), heat);

    const drawCurves = () => {
      const series = methods.filter(isShown).map((method) => {
        const rows = method.nested[state.metric], y = rows.map((row) => row.at(-1) ?? null);
        return { method, y, deviation: method.deviation[state.metric], level: n > 1 && !rows.slice(0, -1).some((row) => row.length) && rows.at(-1).length > 0 };
      });
      lineChart(curves, { series, n, xLabel: "experiences learned", yLabel: `${state.metric} (%)`, label: `${state.metric} after each experience`, heading: (k) => `After experience ${k + 1}: ${state.metric}` });
      const lost = methods.filter(isShown).map((method) => {
        const rows = method.nested[state.metric], end = rows.findLast((row) => row.length) ?? [];
        return { method, y: Array.from({ length: n - 1 }, (_, i) => (known(rows[i].at(-1)) && end.length > i + 1 ? rows[i].at(-1) - end[i] : null)), deviation: [] };
      });
      const any = n > 2 && methods.some((method) => method.nested[state.metric].slice(0, -1).some((row) => row.length));
      for (const node of [forgettingTitle, forgettingTitle.nextSibling, forgetting]) node.hidden = !any;
      if (any) lineChart(forgetting, { series: lost, n: n - 1, xLabel: "nested test set: classes of experiences 1 to …", yLabel: `lost ${state.metric} (points)`, label: `Lost ${state.metric} of each nested test set`, heading: (k) => `Classes of experience${k ? `s 1 to ${k + 1}` : " 1"}: lost ${state.metric}` });
    };
    const drawClasses = () => {
      const own = methods.filter((method) => isShown(method) && method.ap.some(known));
      const rows = classes.map((name, c) => h("tr", { class: c && experienceOf[c] !== experienceOf[c - 1] ? "first" : null },
        h("th", { scope: "row", title: name, "data-sort": -c }, name),
        own.map((method, k) => h("td", { "data-c": c, "data-m": k, style: known(method.ap[c]) ? { background: CIVIDIS.css(method.ap[c] / 100), color: CIVIDIS.contrast(method.ap[c] / 100) } : {} }, number(method.ap[c], 0)))));
      const table = h("table", { class: "heat", style: { "max-width": `${14 + 6 * own.length}rem` } }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"), own.map((method) => h("th", { scope: "col" }, method.name)))), h("tbody", {}, rows));
      sortable(table);
      table.addEventListener("pointerover", (event) => {
        const cell = event.target.closest("td");
        if (!cell) return hideTip();
        const { c, m } = cell.dataset, method = own[m];
        showTip(event.clientX, event.clientY, h("b", {}, classes[c]), ` (experience ${experienceOf[c] + 1})`, h("br"), `${method.name}: AP ${spread(method.ap[c], method.ap_deviation[c])}`);
      });
      table.addEventListener("pointerleave", hideTip);
      heat.replaceChildren(table);
    };
    const save = () => { try { sessionStorage.setItem(store, JSON.stringify(state)); } catch { /* no storage */ } };
    const compare = () => {
      chips.forEach((chip) => chip.setAttribute("aria-pressed", String(state.shown.includes(chip.dataset.label))));
      drawCurves(); drawClasses(); save();
    };

    // One method.
    const view = root.querySelector('[data-view="detail"]'), content = h("div");
    view.append(h("div", { class: "tools" }, h("label", {}, "Method", select(methods.map((one) => [one.label, one.name]), state.focus, (value) => { state.focus = value; detail(); }))), content);

    const title = (text, ...note) => [h("h3", {}, text), h("p", { class: "note" }, ...note)];
    const drawNested = (method) => {
      const maps = h("div", { class: "maps" });
      content.append(...title("Scores after each experience", "A row is the state after an experience, a column a nested test set: the images and classes of experiences 1 to i.", " ", CIVIDIS.bar("0", "100")), maps);
      const steps = sizes.map((_, t) => String(t + 1)), values = method.nested[state.metric].map((row) => steps.map((_, i) => row[i] ?? null));
      heatmap(figure(maps, `${state.metric} on nested test sets`), {
        values, rows: steps, columns: steps, colours: CIVIDIS, position: (v) => v / 100, text: (v) => number(v, 0), size: Math.max(14, Math.min(34, Math.floor(320 / n))), label: `${state.metric} of ${method.name} on nested test sets`,
        describe: (t, i) => [h("b", {}, `After experience ${t + 1}`), h("br"), `classes of experience${i ? `s 1 to ${i + 1}` : " 1"}: ${state.metric} ${number(values[t][i])}`],
      });
      if (!method.class_ap.length) return;
      const byClass = classes.map((_, c) => steps.map((_, t) => method.class_ap[t]?.[c] ?? null));
      heatmap(figure(maps, "AP of each class, after each experience"), {
        values: byClass, rows: classes, columns: steps, colours: CIVIDIS, position: (v) => v / 100, text: (v) => number(v, 0), size: classes.length > 60 ? 12 : n > 12 ? 18 : 24, breaks, columnBreaks: [], label: `AP of each class of ${method.name}`,
        describe: (c, t) => [h("b", {}, classes[c]), h("br"), `after experience ${t + 1}: AP ${number(byClass[c][t])}`],
      });
    };
    const drawMatrix = (method) => {
      if (!method.acm) return;
      const maps = h("div", { class: "maps" }), { truth } = method, seen = method.acm.length, names = classes.slice(0, seen);
      content.append(...title("Correlation matrix", "P(row | column), lines between experiences.", " ", CIVIDIS.bar("0", "1"), ...(truth ? [" Difference: ", DIVERGING.bar("−1", "1")] : [])), maps);
      const beside = content.clientWidth > 900 ? 3 : 1, room = content.clientWidth / beside - 145; // names take the rest
      const size = Math.max(3, Math.min(18, Math.floor(Math.min(340, room) / seen)));
      const shared = { rows: names, columns: names, breaks: breaks.filter((b) => b < seen), size };
      const describe = (i, j) => [h("b", {}, `P(${names[i]} | ${names[j]})`), h("br"), `${method.name}: ${number(method.acm[i][j] / 1000, 3)}`, ...(truth ? [h("br"), `${method.truth_title}: ${number(truth[i][j] / 1000, 3)}`] : [])];
      heatmap(figure(maps, `found by ${method.name}`), { ...shared, values: method.acm, colours: CIVIDIS, position: (v) => v / 1000, describe, label: `Correlation matrix of ${method.name}` });
      if (!truth) return;
      heatmap(figure(maps, method.truth_title), { ...shared, values: truth.slice(0, seen).map((row) => row.slice(0, seen)), colours: CIVIDIS, position: (v) => v / 1000, describe, label: method.truth_title });
      heatmap(figure(maps, "found − true"), { ...shared, values: method.acm.map((row, i) => row.map((v, j) => v - truth[i][j])), colours: DIVERGING, position: (v) => .5 + v / 2000, describe, label: "Difference of the matrices" });
    };
    const drawDecisions = (method, at) => {
      const { thresholds, found, right, true: positives } = method.decisions, ratio = (a, b) => (b ? (100 * a) / b : null);
      const byNearness = [...thresholds.keys()].sort((a, b) => Math.abs(thresholds[a] - .5) - Math.abs(thresholds[b] - .5)); // of equals, the one next to 0.5
      const rows = positives.map((n_true, c) => {
        const precision = ratio(right[at][c], found[at][c]), recall = ratio(right[at][c], n_true), f1 = ratio(2 * right[at][c], found[at][c] + n_true);
        const best = byNearness.reduce((a, k) => { const v = ratio(2 * right[k][c], found[k][c] + n_true) ?? -1; return v > a[0] ? [v, thresholds[k]] : a; }, [-1, null]);
        const bar = (value) => h("td", { class: "bar", style: { "--v": value ?? 0 } }, number(value));
        return h("tr", {}, h("th", { scope: "row", title: classes[c], "data-sort": -c }, classes[c]), h("td", {}, String(n_true)), h("td", {}, String(found[at][c])), h("td", {}, String(right[at][c])), bar(precision), bar(recall), bar(f1), h("td", {}, number(method.ap[c])),
          h("td", { title: `F1 ${number(best[0])} on the test images themselves` }, number(best[1])));
      });
      const heads = ["class", "true", "found", "right", "precision", "recall", "F1", "AP", "best threshold"];
      const table = h("table", { class: "bars" }, h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, rows));
      sortable(table);
      return table;
    };
    const labelList = (labels, probabilities) => {
      const kinds = { right: "✓", wrong: "✗", missed: "○" };
      const items = probabilities.flatMap((p, c) => {
        const isTrue = labels.includes(classes[c]), isFound = p >= 100 * state.threshold;
        return isTrue || isFound ? [{ name: classes[c], p, kind: isTrue ? (isFound ? "right" : "missed") : "wrong" }] : [];
      });
      items.sort((a, b) => Object.keys(kinds).indexOf(a.kind) - Object.keys(kinds).indexOf(b.kind) || b.p - a.p);
      return h("ul", {}, items.map(({ name, p, kind }) => h("li", { class: kind, title: `${kind}, p = ${(p / 100).toFixed(3)}` }, `${kinds[kind]} ${name} `, h("small", {}, (p / 100).toFixed(2)))));
    };
    const photo = (place, labels, ...below) => h("div", { class: "photo" }, h("img", { src: photos[place], alt: `Test photo of ${labels.join(", ") || "none of the classes"}`, decoding: "async" }), ...below);
    const drawFound = (method) => {
      if (!method.decisions && !method.pictures.length) return;
      const table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Precision and recall of each class" }), cards = h("div", { class: "photos" });
      const learned = method.class_ap.length || n, shownAt = h("output"), threshold = h("output");
      let after = learned - 1;
      const draw = () => {
        threshold.textContent = state.threshold.toFixed(1);
        shownAt.textContent = String(after + 1);
        if (method.decisions) table.replaceChildren(drawDecisions(method, method.decisions.thresholds.findIndex((p) => Math.abs(p - state.threshold) < .01)));
        cards.replaceChildren(...method.pictures.map(({ photo: place, labels, probabilities: rows }) => photo(place, labels, (rows[after] ?? []).length ? labelList(labels, rows[after]) : h("ul", {}, h("li", { class: "missed" }, "not evaluated after this experience")))));
        save();
      };
      content.append(...title("Found labels", "A label is found if its probability is at or above the threshold. Counts are of all test images after the last experience, added up over seeds. The best threshold has the highest F1 on the test images themselves, which is optimistic."),
        h("div", { class: "tools" }, h("label", {}, "Threshold", slider(.1, .9, .1, state.threshold, (value) => { state.threshold = value; draw(); }), threshold)), table);
      if (method.pictures.length) content.append(...title("Photos as more is learned", h("span", { class: "right" }, "✓ right"), " · ", h("span", { class: "wrong" }, "✗ wrong"), " · ", h("span", { class: "missed" }, "○ missed: already learned, but below the threshold"), ". Chosen by their labels alone."),
        h("div", { class: "tools" }, h("label", {}, "After experience", slider(1, learned, 1, learned, (value) => { after = value - 1; draw(); }), shownAt)), cards);
      draw();
    };
    const drawWorst = (method) => {
      if (!method.worst.length) return;
      const names = [...new Set(method.worst.map((one) => one.class))], cards = h("div", { class: "photos" });
      const draw = (name) => cards.replaceChildren(...method.worst.filter((one) => one.class === name).map((one) => photo(one.photo, one.labels,
        h("ul", {}, h("li", { class: one.error }, one.error === "missed" ? `○ ${name} missed ` : `✗ ${name} is not there `, h("small", {}, (one.probability / 100).toFixed(2))), h("li", {}, h("small", {}, `shows ${one.labels.join(", ") || "none of the classes"}`))))));
      content.append(...title("Worst photos of a class", "Those with the lowest probability of a label they have, and the highest of one they do not have."),
        h("div", { class: "tools" }, h("label", {}, "Class", select(names.map((one) => [one, one]), names[0], draw))), cards);
      draw(names[0]);
    };
    const detail = () => {
      const method = byLabel[state.focus];
      content.replaceChildren(h("p", { class: "note" }, `${method.description ? method.description + ". " : ""}Seeds ${method.seeds.join(", ")}.`));
      drawNested(method); drawMatrix(method); drawFound(method); drawWorst(method); save();
    };

    let width = root.clientWidth;
    compare(); detail();
    new ResizeObserver(() => {
      if (!root.clientWidth || root.clientWidth === width) return;
      width = root.clientWidth;
      requestAnimationFrame(() => { drawCurves(); detail(); });
    }).observe(root);
  };

  // The page: parts, light and dark, reloading while runs continue.

  const sections = [...document.querySelectorAll(".part")], tabs = [...document.querySelectorAll('[role="tab"]')], built = new Set();
  const open = (index) => {
    sections.forEach((section, k) => { section.hidden = k !== index; });
    tabs.forEach((tab, k) => { tab.setAttribute("aria-selected", String(k === index)); tab.tabIndex = k === index ? 0 : -1; });
    if (!built.has(index)) { built.add(index); build(sections[index], parts[index], index); }
  };
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => open(k));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const next = (k + step + tabs.length) % tabs.length;
      open(next); tabs[next].focus();
    });
  });
  open(0);

  document.getElementById("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  const reload = document.getElementById("reload");
  if (reload) setInterval(() => { if (reload.checked && !document.hidden) location.reload(); }, 20000);
})();
