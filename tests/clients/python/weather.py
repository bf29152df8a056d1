"""The question, the function and the person of the programs that call tools and read JSON.

The demo model was trained to call the function, to answer with its result and to find a person. It is too small to
copy every name, so the programs check what the grammar and the libraries guarantee, and that an answer follows a
call.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION: Final = "What is the weather in Oslo?"
PERSON_TEXT: Final = "Ada is 36 years old."
RESULT: Final = "21 °C, sunny"
asked_cities: Final[list[str]] = []
"""Arguments of the calls of `get_weather`."""


class Person(BaseModel):
    name: str
    age: int


class Order(BaseModel):
    """A schema that the demo model was not trained for: only the grammar makes it valid. Each part is bounded."""

    model_config = ConfigDict(extra="forbid")  # other fields have no bound

    size: Literal["small", "large"]
    toppings: Annotated[list[Literal["cheese", "basil"]], Field(max_length=3)]
    note: Annotated[str, Field(max_length=8)] | None


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    assert isinstance(city, str)
    asked_cities.append(city)
    return RESULT
