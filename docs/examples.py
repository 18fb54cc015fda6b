"""Makes mkdocstrings show an ``Example:`` of a docstring as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section to the name that griffe reads as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
