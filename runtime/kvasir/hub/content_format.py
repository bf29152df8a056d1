"""Finds out what a chat template expects as a message's content: one text, or a list of parts.

A template that loops over the content, directly or through a variable, expects a list. Found in the template's
syntax tree, because a template that gets the wrong kind renders nonsense and raises nothing.
"""

from jinja2 import nodes

_CONTENT = "content"


def loops_over_content(template: nodes.Template) -> bool:
    """Whether the template has a loop over the content of a message."""
    names = {
        assignment.target.name
        for assignment in template.find_all(nodes.Assign)
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(names)) for loop in template.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    """Whether the expression is message.content, message["content"] or one of the names, perhaps with filters."""
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == _CONTENT
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == _CONTENT
    return isinstance(node, nodes.Name) and node.name in names
