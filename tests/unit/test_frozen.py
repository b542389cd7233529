"""``@dataclass`` of the product behaves as that of the standard library, and compiles a method when it is first called."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from orchestrator.model.frozen import COMPILED_AFTER, dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A class with every kind of field."""

    name: str
    size: int = 1
    parts: list[int] = field(default_factory=list)
    hidden: int = field(default=7, repr=False, compare=False)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.size + len(self.parts))


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(slots=True)
class Counter:
    count: int = 0
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Item):
    size: int = 5
    extra: str = ""


def test_a_class_behaves_as_that_of_the_standard_library() -> None:
    item = Item(name="a", parts=[1])
    assert repr(item) == "Item(name='a', size=1, parts=[1], total=2)"
    assert item == Item(name="a", parts=[1], hidden=9)
    assert item != Item(name="b", parts=[1])
    assert item != Child(name="a", parts=[1], size=1)
    assert replace(item, size=3).total == 4
    assert Item(name="a").parts is not Item(name="a").parts
    assert repr(Child(name="a")) == "Child(name='a', size=5, parts=[], total=5, extra='')"
    assert (Point(1), hash(Point(1, 2))) == (Point(x=1, y=0), hash(Point(1, 2)))
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
    counter = Counter()
    counter.count += 1
    assert counter == Counter(count=5)


@pytest.mark.parametrize(
    ("values", "text"), [({}, "missing 1 required keyword-only argument: 'name'"), ({"name": "a", "sise": 2}, "'sise'")]
)
def test_wrong_arguments_are_named_with_the_class(values: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=rf"Item\.__init__\(\).*{text}"):
        Item(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("values", "names"), [((1, 2, 3), {}), ((1,), {"x": 2}), ((), {"y": 1})])
def test_positions_that_are_too_many_twice_or_missing_are_refused(values: Any, names: Any) -> None:
    with pytest.raises(TypeError, match="__init__"):
        Point(*values, **names)


def test_a_frozen_class_refuses_changes_and_can_be_copied() -> None:
    point = Point(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'y'"):
        del point.y
    with pytest.raises(TypeError):
        hash(Item(name="a"))
    assert copy.copy(point) == copy.deepcopy(point) == point


def test_a_frozen_class_of_the_standard_library_may_be_its_child() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Point):
        z: int = 3

    assert repr(Own(1)).endswith("Own(x=1, y=0, z=3)")


def test_the_constructor_is_compiled_once_it_is_often_called_and_does_the_same_before() -> None:
    @dataclass(frozen=True, slots=True)
    class Often(Point):
        z: list[int] = field(default_factory=list)

    before = Often.__init__
    made = [Often(1, 2), *(Often(1, y=2) for _ in range(COMPILED_AFTER))]
    assert Often.__init__ is not before and set(map(repr, made)) == {repr(made[0])}
    assert made[0].z is not made[1].z and made[-1].z is not made[-2].z


def test_a_method_is_compiled_when_it_is_first_called() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    before = Late.__eq__
    late = Late(1)
    assert Late.__eq__ is before
    assert (late, Late.__eq__ is before) == (Late(1), True)
    assert Late.__eq__ is not before
