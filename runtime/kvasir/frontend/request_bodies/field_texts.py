"""The texts below a class's fields, for the OpenAPI document."""

import ast
import inspect
import textwrap


def field_texts(owner: type) -> dict[str, str]:
    # read only for the document; pydantic's `use_attribute_docstrings` reads the source at each start
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
