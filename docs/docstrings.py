"""What the API pages take from the source, beside what mkdocstrings does by itself."""

import re
from typing import Any

from griffe import Class, Extension, Object


class Docstrings(Extension):
    """Docstrings as Markdown, and classes without what nobody has written a line about."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """A line that ends with ``::`` announces the block after it, as in reStructuredText."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Attributes set on the way, and ``__repr__`` and the like; a dataclass's fields are its arguments."""
        if any("dataclass" in str(decorator.value) for decorator in cls.decorators):
            return
        for name, member in list(cls.members.items()):
            is_plain = member.is_attribute and "property" not in member.labels
            is_special = name.startswith("__") and name != "__init__"
            if member.docstring is None and (is_plain or is_special):
                cls.del_member(name)
