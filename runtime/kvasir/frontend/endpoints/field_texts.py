"""The texts below the fields of a class, for the OpenAPI document."""

import ast
import inspect
import textwrap


def field_texts(owner: type) -> dict[str, str]:
    """Return the text below each field that has one."""
    # Read from the source when the document is made; pydantic's `use_attribute_docstrings` would do so at each
    # start.
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:
        return {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
