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
  const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}. ` : "");
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
  const VIRIDIS = scale("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725");
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

  // The y axis covers the values, and those in `include`; if they have 0, it is drawn as a line.
  const lineChart = (box, { series, n, xLabel, yLabel, heading, label, include = [] }) => {
    const width = Math.max(280, box.clientWidth), height = Math.max(250, Math.min(430, width * .5));
    const edge = { left: 46, right: 16, top: 12, bottom: 44 };
    const values = series.flatMap(({ y, deviation }) => y.flatMap((v, k) => (known(v) ? [v - (deviation?.[k] ?? 0), v + (deviation?.[k] ?? 0)] : [])));
    if (!values.length) { box.replaceChildren(h("p", { class: "note" }, "Nothing to show: switch a method on.")); return; }
    const low = Math.min(...values, ...include), high = Math.max(...values, ...include), pad = (high - low || 1) * .05;
    const [bottom, top] = [low - pad, high + pad];
    const X = (k) => edge.left + (n === 1 ? .5 : k / (n - 1)) * (width - edge.left - edge.right);
    const Y = (v) => edge.top + (1 - (v - bottom) / (top - bottom)) * (height - edge.top - edge.bottom);
    const crowded = series.length > 6; // the bands of many curves would hide each other: only that of the nearest is shown
    const svg = s("svg", { width, height, tabindex: 0, role: "img", class: crowded ? "crowded" : null, "aria-label": `${label}. Use the arrow keys to read values.` });
    for (const tick of niceTicks(bottom, top)) {
      svg.append(s("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: Y(tick), y2: Y(tick) }),
        s("text", { x: edge.left - 8, y: Y(tick) + 4, "text-anchor": "end" }, String(+tick.toFixed(6))));
    }
    if (include.includes(0)) svg.append(s("line", { class: "zero", x1: edge.left, x2: width - edge.right, y1: Y(0), y2: Y(0) }));
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

  const heatmap = (box, { values, rows, columns, colours, position, text, describe, breaks = [], columnBreaks = breaks, label, cell: [wide, high] }) => {
    const n = rows.length, m = columns.length;
    const names = high >= 9, left = names ? 10 + 6.6 * Math.min(18, Math.max(...rows.map((r) => r.length))) : 6;
    const longest = Math.min(16, Math.max(...columns.map((c) => c.length))), upright = longest < 3;
    const head = names ? 10 + 6.2 * (upright ? 1.5 : longest) : 6;
    const canvas = h("canvas", { width: m, height: n }), context = canvas.getContext("2d");
    const pixels = context.createImageData(m, n);
    values.forEach((row, i) => row.forEach((value, j) => { if (known(value)) pixels.data.set([...colours.rgb(position(value)), 255], 4 * (i * m + j)); }));
    context.putImageData(pixels, 0, 0);
    const svg = s("svg", { width: left + m * wide + 4, height: head + n * high + 4, tabindex: 0, role: "img", "aria-label": `${label}. Use the arrow keys to read values.` },
      s("image", { href: canvas.toDataURL(), x: left, y: head, width: m * wide, height: n * high, preserveAspectRatio: "none", style: { "image-rendering": "pixelated" } }));
    const font = { "font-size": `${Math.min(12, high * .82)}px` };
    if (names) {
      rows.forEach((name, i) => svg.append(s("text", { x: left - 5, y: head + (i + .5) * high + 4, "text-anchor": "end", style: font }, shorten(name, 18))));
      columns.forEach((name, j) => svg.append(s("text", { transform: `translate(${left + (j + .5) * wide + (upright ? 0 : 4)} ${head - 5}) rotate(${upright ? 0 : -90})`, "text-anchor": upright ? "middle" : "start", style: font }, shorten(name, 16))));
    }
    if (text && wide >= 22 && high >= 14) values.forEach((row, i) => row.forEach((value, j) => {
      if (known(value)) svg.append(s("text", { x: left + (j + .5) * wide, y: head + (i + .5) * high + 4, "text-anchor": "middle", style: { fill: colours.contrast(position(value)), "font-size": "10.5px" } }, text(value)));
    }));
    for (const b of breaks) svg.append(s("line", { class: "border", x1: left, x2: left + m * wide, y1: head + b * high, y2: head + b * high }));
    for (const b of columnBreaks) svg.append(s("line", { class: "border", y1: head, y2: head + n * high, x1: left + b * wide, x2: left + b * wide }));
    const mark = s("rect", { class: "cursor", width: wide, height: high, visibility: "hidden" });
    svg.append(mark);
    let cursor = [0, 0];
    const read = (i, j, x, y) => {
      cursor = [i, j];
      mark.setAttribute("x", left + j * wide); mark.setAttribute("y", head + i * high); mark.setAttribute("visibility", "visible");
      showTip(x, y, ...describe(i, j));
    };
    const leave = () => { hideTip(); mark.setAttribute("visibility", "hidden"); };
    const point = (event) => {
      const place = svg.getBoundingClientRect();
      const [i, j] = [Math.floor((event.clientY - place.top - head) / high), Math.floor((event.clientX - place.left - left) / wide)];
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
      read(i, j, place.left + left + j * wide, place.top + head + (i + 1) * high);
    });
    box.replaceChildren(svg);
  };

  // A box that can be scrolled sideways says so above it, and fades out at its right edge (report.css).
  const withHint = (box) => {
    const hint = h("p", { class: "hint", "aria-hidden": "true", hidden: true }, "scroll sideways for more →");
    const wrapper = h("div");
    if (box.parentNode) box.before(wrapper);
    wrapper.append(hint, box);
    const update = () => {
      const hidden = box.scrollWidth - box.clientWidth;
      hint.hidden = hidden <= 1;
      box.classList.toggle("more", hidden - box.scrollLeft > 4);
    };
    box.addEventListener("scroll", update, { passive: true });
    new ResizeObserver(update).observe(box);
    new MutationObserver(update).observe(box, { childList: true });
    return wrapper;
  };

  const figure = (parent, ...caption) => {
    const box = h("div", { class: "map" });
    parent.append(h("figure", {}, h("figcaption", {}, ...caption), withHint(box)));
    return box;
  };
  const between = (low, value, high) => Math.max(low, Math.min(high, Math.floor(value)));
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
    const state = { shown: methods.filter((one) => one.shown).map((one) => one.label), metric: metrics[0], focus: part.best, threshold: "run" };
    try { Object.assign(state, JSON.parse(sessionStorage.getItem(store))); } catch { /* no storage for this page */ }
    const isShown = (method) => state.shown.includes(method.label);
    const byLabel = Object.fromEntries(methods.map((one) => [one.label, one])), byName = Object.fromEntries(methods.map((one) => [one.name, one]));
    if (!byLabel[state.focus]) state.focus = part.best;

    for (const table of root.querySelectorAll("table.sortable")) sortable(table);
    for (const table of root.querySelectorAll("table.compare")) {
      const rows = [...table.tBodies[0].rows], ofRows = rows.map((row) => byName[row.cells[0].textContent]);
      rows.forEach(({ cells: [head] }, k) => {
        if (ofRows[k]) head.replaceChildren(h("span", { class: "named" }, swatch(ofRows[k]), h("span", {}, ofRows[k].name)));
      });
      // The best of each column is bold, without methods that train on everything at once.
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const heading = head.textContent, compared = rows.filter((_, k) => !ofRows[k]?.at_once);
        if (!column || compared.length < 2 || !/last|nested|forgetting/.test(heading) || /paper/.test(heading)) return;
        const value = (row) => parseFloat(row.cells[column].textContent);
        const values = compared.map(value).filter((v) => !isNaN(v));
        const best = /forgetting/.test(heading) ? Math.min(...values) : Math.max(...values);
        for (const row of compared) row.cells[column].classList.toggle("best", value(row) === best);
      });
    }
    for (const box of root.querySelectorAll(".scroll")) withHint(box);

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
        withHint(h("div", { class: "chips", role: "group", "aria-label": "Methods" }, chips))),
      h("h3", {}, "Learning curves"), h("p", { class: "note" }, "The score on the test images and classes of all experiences so far, with a band of one standard deviation over seeds (with more than six methods, only that of the curve that is pointed at). A method that trains once on everything is a dashed line."), curves,
      forgettingTitle, h("p", { class: "note" }, "By how many points the score on each nested test set has fallen, from when its last classes were new to the end of the run. Below 0, it has risen."), forgetting,
      h("h3", {}, "AP of each class"), h("p", { class: "note" }, "After the last experience, in percent. Rows are in the order of learning; select a heading to sort.", " ", VIRIDIS.bar("0", "100")), withHint(heat));

    const drawCurves = () => {
      const series = methods.filter(isShown).map((method) => {
        const rows = method.nested[state.metric], y = rows.map((row) => row.at(-1) ?? null);
        return { method, y, deviation: method.deviation[state.metric], level: method.at_once };
      });
      lineChart(curves, { series, n, xLabel: "experiences learned", yLabel: `${state.metric} (%)`, label: `${state.metric} after each experience`, heading: (k) => `After experience ${k + 1}: ${state.metric}` });
      const lost = methods.filter(isShown).map((method) => {
        const rows = method.nested[state.metric], end = rows.findLast((row) => row.length) ?? [];
        return { method, y: Array.from({ length: n - 1 }, (_, i) => (known(rows[i].at(-1)) && end.length > i + 1 ? rows[i].at(-1) - end[i] : null)), deviation: [] };
      });
      const any = n > 2 && methods.some((method) => method.nested[state.metric].slice(0, -1).some((row) => row.length));
      for (const node of [forgettingTitle, forgettingTitle.nextSibling, forgetting]) node.hidden = !any;
      if (any) lineChart(forgetting, { series: lost, n: n - 1, xLabel: "nested test set: classes of experiences 1 to …", yLabel: `${state.metric} lost (points)`, include: [0, 10], label: `Lost ${state.metric} of each nested test set`, heading: (k) => `Classes of experience${k ? `s 1 to ${k + 1}` : " 1"}: lost ${state.metric}` });
    };
    const drawClasses = () => {
      const scored = methods.filter((method) => isShown(method) && method.ap.some(known));
      const rows = classes.map((name, c) => h("tr", { class: c && experienceOf[c] !== experienceOf[c - 1] ? "first" : null },
        h("th", { scope: "row", title: name, "data-sort": -c }, name),
        scored.map((method, k) => h("td", { "data-c": c, "data-m": k, style: known(method.ap[c]) ? { background: VIRIDIS.css(method.ap[c] / 100), color: VIRIDIS.contrast(method.ap[c] / 100) } : {} }, number(method.ap[c], 0)))));
      const table = h("table", { class: "heat" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"), scored.map((method) => h("th", { scope: "col" }, method.name)))), h("tbody", {}, rows));
      sortable(table);
      table.addEventListener("pointerover", (event) => {
        const cell = event.target.closest("td");
        if (!cell) return hideTip();
        const { c, m } = cell.dataset, method = scored[m];
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
      content.append(...title("Scores after each experience", "A row is the state after an experience, a column a nested test set: the images and classes of experiences 1 to i.", " ", VIRIDIS.bar("0", "100")), maps);
      const steps = sizes.map((_, t) => String(t + 1)), values = method.nested[state.metric].map((row) => steps.map((_, i) => row[i] ?? null));
      const beside = content.clientWidth > 760 ? 2 : 1, room = content.clientWidth / beside; // for each of the two
      const wide = between(14, (room - 60) / n, 72);
      heatmap(figure(maps, `${state.metric} on nested test sets`), {
        values, rows: steps, columns: steps, colours: VIRIDIS, position: (v) => v / 100, text: (v) => number(v, 0), cell: [wide, Math.min(wide, 34)], label: `${state.metric} of ${method.name} on nested test sets`,
        describe: (t, i) => [h("b", {}, `After experience ${t + 1}`), h("br"), `classes of experience${i ? `s 1 to ${i + 1}` : " 1"}: ${state.metric} ${number(values[t][i])}`],
      });
      if (!method.class_ap.length) return;
      const byClass = classes.map((_, c) => steps.map((_, t) => method.class_ap[t]?.[c] ?? null));
      heatmap(figure(maps, "AP of each class, after each experience"), {
        values: byClass, rows: classes, columns: steps, colours: VIRIDIS, position: (v) => v / 100, text: (v) => number(v, 0), cell: [between(12, (room - 160) / n, 72), classes.length > 60 ? 12 : 22], breaks, columnBreaks: [], label: `AP of each class of ${method.name}`,
        describe: (c, t) => [h("b", {}, classes[c]), h("br"), `after experience ${t + 1}: AP ${number(byClass[c][t])}`],
      });
    };
    const drawMatrix = (method) => {
      if (!method.acm) return;
      const maps = h("div", { class: "maps" }), { truth } = method, seen = method.acm.length, names = classes.slice(0, seen);
      content.append(...title("Correlation matrix", "P(row | column), lines between experiences.", " ", VIRIDIS.bar("0", "1"), ...(truth ? [" Difference: ", DIVERGING.bar("−1", "1")] : [])), maps);
      const beside = content.clientWidth > 900 ? 3 : 1, room = content.clientWidth / beside - 145; // names take the rest
      const size = between(3, room / seen, 44);
      const shared = { rows: names, columns: names, breaks: breaks.filter((b) => b < seen), cell: [size, size] };
      const describe = (i, j) => [h("b", {}, `P(${names[i]} | ${names[j]})`), h("br"), `${method.name}: ${number(method.acm[i][j] / 1000, 3)}`, ...(truth ? [h("br"), `${method.truth_title}: ${number(truth[i][j] / 1000, 3)}`] : [])];
      heatmap(figure(maps, `found by ${method.name}`), { ...shared, values: method.acm, colours: VIRIDIS, position: (v) => v / 1000, describe, label: `Correlation matrix of ${method.name}` });
      if (!truth) return;
      heatmap(figure(maps, method.truth_title), { ...shared, values: truth.slice(0, seen).map((row) => row.slice(0, seen)), colours: VIRIDIS, position: (v) => v / 1000, describe, label: method.truth_title });
      heatmap(figure(maps, "found − true"), { ...shared, values: method.acm.map((row, i) => row.map((v, j) => v - truth[i][j])), colours: DIVERGING, position: (v) => .5 + v / 2000, describe, label: "Difference of the matrices" });
    };
    const thresholdOf = (method, c) => (state.threshold === "run" ? method.thresholds[c] : +state.threshold);
    const drawDecisions = (method) => {
      const { thresholds, found, right, true: positives, chosen_found: chosenFound, chosen_right: chosenRight } = method.decisions;
      const ofRun = state.threshold === "run" && chosenFound;
      const ratio = (a, b) => (b ? (100 * a) / b : null);
      const f1 = (k, c) => ratio(2 * right[k][c], found[k][c] + positives[c]);
      const count = (value) => h("td", {}, number(value, Number.isInteger(value) ? 0 : 1));
      const percent = (value) => h("td", {}, known(value) ? h("span", { class: "bar", style: { "--v": value } }) : null, h("span", { class: "percent" }, number(value)));
      const nearest = [...thresholds.keys()].sort((a, b) => Math.abs(thresholds[a] - .5) - Math.abs(thresholds[b] - .5)); // of equal F1, the one next to 0.5
      const rows = classes.map((name, c) => {
        const best = nearest.reduce((a, k) => ((f1(k, c) ?? -1) > (f1(a, c) ?? -1) ? k : a));
        const at = thresholds.findIndex((p) => Math.abs(p - thresholdOf(method, c)) < 1e-6); // -1 if nothing was counted there
        const [nFound, nRight] = ofRun ? [chosenFound[c], chosenRight[c]] : at < 0 ? [null, null] : [found[at][c], right[at][c]];
        const cells = known(nFound)
          ? [count(positives[c]), count(nFound), count(nRight), percent(ratio(nRight, nFound)), percent(ratio(nRight, positives[c])), percent(ratio(2 * nRight, nFound + positives[c]))]
          : [count(positives[c]), ...Array.from({ length: 5 }, () => h("td", {}, "–"))];
        return h("tr", {}, h("th", { scope: "row", title: name, "data-sort": -c }, name), h("td", {}, number(thresholdOf(method, c), 2)), cells,
          h("td", {}, number(method.ap[c])), h("td", { title: `F1 ${number(f1(best, c))} on the test images themselves` }, number(thresholds[best])));
      });
      const heads = ["class", "threshold", "true", "found", "right", "precision", "recall", "F1", "AP", "best threshold"];
      const table = h("table", { class: "bars" }, h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, rows));
      sortable(table);
      return table;
    };
    const labelList = (method, labels, probabilities) => {
      const kinds = { right: "✓", wrong: "✗", missed: "○" };
      const items = probabilities.flatMap((p, c) => {
        const isTrue = labels.includes(classes[c]), isFound = p >= 100 * thresholdOf(method, c);
        return isTrue || isFound ? [{ name: classes[c], p, kind: isTrue ? (isFound ? "right" : "missed") : "wrong" }] : [];
      });
      items.sort((a, b) => Object.keys(kinds).indexOf(a.kind) - Object.keys(kinds).indexOf(b.kind) || b.p - a.p);
      return h("ul", {}, items.map(({ name, p, kind }) => h("li", { class: kind, title: `${kind}, p = ${(p / 100).toFixed(3)}` }, `${kinds[kind]} ${name} `, h("small", {}, (p / 100).toFixed(2)))));
    };
    const photo = (place, labels, ...below) => h("div", { class: "photo" }, h("img", { src: photos[place], alt: `Test photo of ${labels.join(", ") || "none of the classes"}`, decoding: "async" }), ...below);
    const describeThresholds = ({ thresholds }) => {
      const [low, high] = [Math.min(...thresholds), Math.max(...thresholds)];
      return low === high ? `of the run: ${number(low, 2)}` : `of the run: ${number(low, 2)} to ${number(high, 2)}`;
    };
    const drawFound = (method) => {
      if (!method.decisions) return;
      const table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Precision and recall of each class" });
      const many = method.seeds.length > 1 ? `, mean over ${method.seeds.length} seeds` : "";
      content.append(...title("Found labels", `A label is found if its probability is at or above the threshold of its class. Counts are of all test images after the last experience${many}. The best threshold has the highest F1 on the test images themselves, which is optimistic.`), withHint(table));
      redraws.push(() => table.replaceChildren(drawDecisions(method)));
    };
    // Mean probability (horizontal) against the share of positives (vertical), up to `top` percent.
    const drawDiagonal = (maps, caption, label, top, marks) => {
      const beside = content.clientWidth > 760 ? 2 : 1, edge = 40;
      const side = between(240, content.clientWidth / beside - 40, 480), room = side - edge - 14;
      const X = (v) => edge + (room * v) / top, Y = (v) => 10 + room * (1 - v / top);
      const ticks = niceTicks(0, top, 5).flatMap((v) => [
        s("line", { class: "axis", x1: X(v), x2: X(v), y1: Y(0), y2: Y(top) }), s("line", { class: "axis", x1: X(0), x2: X(top), y1: Y(v), y2: Y(v) }),
        s("text", { x: X(v), y: Y(0) + 16, "text-anchor": "middle" }, number(v, top < 5 ? 1 : 0)), s("text", { x: X(0) - 6, y: Y(v) + 4, "text-anchor": "end" }, number(v, top < 5 ? 1 : 0))]);
      const diagonal = s("line", { class: "rule", x1: X(0), y1: Y(0), x2: X(top), y2: Y(top) });
      const svg = s("svg", { width: side, height: side, role: "img", "aria-label": label }, ticks, diagonal, marks(X, Y));
      figure(maps, caption).append(svg);
    };
    const drawReliability = (method) => {
      if (!method.reliability) return;
      const { cells, probability, share, class_probability: ofClass, class_share: shares } = method.reliability;
      const maps = h("div", { class: "maps" });
      content.append(...title("Reliability", "Mean probability (horizontal) against how often the label is there (vertical), in percent of the test images. On the diagonal, probabilities are right."), maps);
      drawDiagonal(maps, "Probabilities of all classes, in bins", `Reliability of the probabilities of ${method.name}`, 100, (X, Y) => [
        inked(method, "polyline", { points: probability.map((p, k) => `${X(p)},${Y(share[k])}`).join(" "), class: "curve" }),
        ...probability.map((p, k) => inked(method, "circle", { cx: X(p), cy: Y(share[k]), r: 4 }, s("title", {}, `mean probability ${number(p)} %: the label is there in ${number(share[k])} % of ${cells[k].toLocaleString("en")}`)))]);
      const drawn = classes.map((_, c) => c).filter((c) => known(ofClass[c]) && known(shares[c]));
      if (!drawn.length) return;
      const top = 1.05 * Math.max(...drawn.flatMap((c) => [ofClass[c], shares[c]])) || 1;
      drawDiagonal(maps, "Mean probability of each class and its share", `Mean probabilities of classes of ${method.name}`, top, (X, Y) => drawn.map((c) =>
        s("circle", { cx: X(ofClass[c]), cy: Y(shares[c]), r: 4, fill: "none", stroke: "currentColor" }, s("title", {}, `${classes[c]}: mean probability ${number(ofClass[c])} %, on ${number(shares[c])} % of the images`))));
    };
    const drawPictures = (method) => {
      if (!method.pictures.length) return;
      const cards = h("div", { class: "photos" }), learned = method.class_ap.length || n, shownAt = h("output");
      let after = learned - 1;
      const draw = () => {
        shownAt.textContent = String(after + 1);
        cards.replaceChildren(...method.pictures.map(({ photo: place, labels, probabilities: rows }) => photo(place, labels,
          (rows[after] ?? []).length ? labelList(method, labels, rows[after]) : h("ul", {}, h("li", { class: "missed" }, "not evaluated after this experience")))));
      };
      content.append(...title("Photos as more is learned", h("span", { class: "right" }, "✓ right"), " · ", h("span", { class: "wrong" }, "✗ wrong"), " · ", h("span", { class: "missed" }, "○ missed: already learned, but below the threshold"), `. Of seed ${method.seeds[0]}; chosen by their labels alone.`),
        h("div", { class: "tools" }, h("label", {}, "After experience", slider(1, learned, 1, learned, (value) => { after = value - 1; draw(); }), shownAt)), cards);
      redraws.push(draw);
    };
    // Whether one of the hardest photos of a class is an error depends on the threshold.
    const judge = (method, { class: name, error, probability }) => {
      const isFound = probability >= 100 * thresholdOf(method, classes.indexOf(name));
      if (error === "missed") return isFound ? ["right", `✓ ${name} found `] : ["missed", `○ ${name} missed `];
      return isFound ? ["wrong", `✗ ${name} found, but not there `] : ["missed", `– ${name} not found, and not there `];
    };
    const drawWorst = (method) => {
      if (!method.worst.length) return;
      const names = [...new Set(method.worst.map((one) => one.class))], cards = h("div", { class: "photos" });
      let chosen = names[0];
      const draw = () => cards.replaceChildren(...method.worst.filter((one) => one.class === chosen).map((one) => {
        const [kind, text] = judge(method, one);
        return photo(one.photo, one.labels, h("ul", {}, h("li", { class: kind }, text, h("small", {}, (one.probability / 100).toFixed(2))), h("li", {}, h("small", {}, `shows ${one.labels.join(", ") || "none of the classes"}`))));
      }));
      content.append(...title("Hardest photos of a class", `Of the test photos with the class, those with its lowest probability; of those without it, those with its highest. Of seed ${method.seeds[0]}.`),
        h("div", { class: "tools" }, h("label", {}, "Class", select(names.map((one) => [one, one]), chosen, (name) => { chosen = name; draw(); }))), cards);
      redraws.push(draw);
    };
    let redraws = []; // what depends on the threshold
    const chooseThreshold = (method) => {
      if (!method.decisions && !method.pictures.length && !method.worst.length) return;
      const options = [["run", describeThresholds(method)], ...(method.decisions?.thresholds ?? []).map((p) => [String(p), `${number(p)} for all classes`])];
      content.append(h("div", { class: "tools" }, h("label", {}, "Thresholds of labels", select(options, state.threshold, (value) => { state.threshold = value; redraws.forEach((draw) => draw()); save(); }))));
    };
    const detail = () => {
      const method = byLabel[state.focus];
      redraws = [];
      content.replaceChildren(h("p", { class: "note" }, `${sentence(method.description)}Seed${method.seeds.length > 1 ? "s" : ""} ${method.seeds.join(", ")}.`));
      drawNested(method); drawMatrix(method); chooseThreshold(method); drawFound(method); drawReliability(method); drawPictures(method); drawWorst(method);
      if (part.missing_photos) content.append(h("p", { class: "note" }, `Photos that are not shown, of all methods: ${part.missing_photos}. Their files were not found, or there was no room for them on this page.`));
      redraws.forEach((draw) => draw());
      save();
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
