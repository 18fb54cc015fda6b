"""A griffe extension that makes mkdocstrings render the ``Example:`` section of a docstring as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section to ``Examples:``, which griffe parses as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the section in the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
