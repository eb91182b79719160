"""Docstrings as the reference shows them (an extension of Griffe)."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Our sections are called `Example`, which Griffe would take for a remark and not for code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Likelihoods are Equinox modules, whose constructors take the annotated attributes."""
        if not cls.path.startswith("msign.problems.likelihoods") or "__init__" in cls.members:
            return
        named = (a for a in cls.attributes.values() if "property" not in a.labels)
        fields = [a for a in named if a.annotation is not None]
        if not fields:
            return
        kind = griffe.ParameterKind.positional_or_keyword
        own = [griffe.Parameter(a.name, kind=kind, default=default_of(a)) for a in fields]
        parameters = griffe.Parameters(griffe.Parameter("self", kind=kind), *own)
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def default_of(attribute: griffe.Attribute) -> str | None:
    """The default of a field, as code."""
    value = attribute.value
    if not isinstance(value, griffe.ExprCall):
        return None if value is None else str(value)
    given = [a for a in value.arguments if getattr(a, "name", "") == "default"]
    return str(given[0].value) if given else None
