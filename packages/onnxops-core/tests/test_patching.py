"""Replacements of attributes are counted, belong to their threads, and are undone in any order."""

import itertools
import math
import threading
import types

import pytest

from onnxops_core.patching import Replacements, original, replaced, without_replacement


def usual():
    return "usual"


class Base:
    @property
    def size(self):
        return self._size if hasattr(self, "_size") else 0

    @size.setter
    def size(self, value):
        self._size = value

    def method(self):
        return "method of Base"


class Owner(Base):
    @classmethod
    def make(cls):
        return cls.__name__


@pytest.fixture
def module():
    made = types.ModuleType("owner")
    made.function, made.limit = usual, 1
    return made


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_contexts_end_in_any_order(module, order):
    contexts = [replaced([(module, "function", lambda number=number: number)]) for number in range(3)]
    for context in contexts:
        context.__enter__()
    seen = []

    for index in order:
        seen.append(module.function())
        contexts[index].__exit__(None, None, None)

    left = [set(range(3)) - set(order[:count]) for count in range(3)]
    assert seen == [max(numbers) for numbers in left]
    assert module.function is usual


def test_a_builtin_that_a_module_does_not_define(module):
    with replaced([(module, "len", lambda value: 7)]):
        assert module.len([]) == 7
        seen = []
        thread = threading.Thread(target=lambda: seen.append(module.len([])))
        thread.start()
        thread.join()
        assert seen == [0]
    assert not hasattr(module, "len")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_values_that_are_no_functions_too(module, order):
    contexts = [replaced([(module, "limit", 10 + number)]) for number in range(3)]
    for context in contexts:
        context.__enter__()

    for index in order:
        assert module.limit >= 10
        contexts[index].__exit__(None, None, None)

    assert module.limit == 1


@pytest.mark.parametrize("in_all_threads", [False, True])
def test_another_thread_sees_the_usual_function_unless_all_are_meant(module, in_all_threads):
    seen = []

    with replaced([(module, "function", lambda: "mine")], in_all_threads=in_all_threads):
        thread = threading.Thread(target=lambda: seen.append(module.function()))
        thread.start()
        thread.join()
        seen.append(module.function())

    assert seen == ["mine" if in_all_threads else "usual", "mine"]


def test_each_thread_sees_its_own(module):
    barrier, seen = threading.Barrier(4), {}

    def run(number):
        with replaced([(module, "function", lambda: number)]):
            barrier.wait()
            seen[number] = module.function()
            barrier.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {number: number for number in range(4)}
    assert module.function is usual


def test_methods_class_methods_and_inherited_properties():
    owner = Owner()
    replacements = [
        (Owner, "method", lambda self: f"mine of {type(self).__name__}"),
        (Owner, "make", classmethod(lambda cls: f"mine of {cls.__name__}")),
        (Owner, "size", property(lambda self: 7, lambda self, value: None)),
    ]

    with replaced(replacements):
        owner.size = 3
        inside = owner.method(), Owner.make(), owner.size
    owner.size = 4

    assert inside == ("mine of Owner", "mine of Owner", 7)
    assert (owner.method(), Owner.make(), owner.size) == ("method of Base", "Owner", 4)
    assert set(vars(Owner)) & {"method", "size"} == set()


def test_the_code_of_a_function_is_an_attribute_as_well():
    def function():
        return "usual"

    with replaced([(function, "__code__", (lambda: "mine").__code__)]):
        inside = function(), types.FunctionType(original(function, "__code__"), {})()

    assert inside == ("mine", "usual")
    assert function() == "usual"


def test_what_someone_else_put_in_the_place_meanwhile_stays_and_falls_back_to_the_usual(module):
    context = replaced([(module, "function", lambda: "mine")])
    context.__enter__()
    ours = module.function
    module.function = lambda: "theirs"

    context.__exit__(None, None, None)
    kept = module.function()
    module.function = ours  # as they undo it

    assert kept == "theirs"
    assert module.function() == "usual"


def test_an_error_undoes_the_replacement_and_its_original_is_known(module):
    with pytest.raises(KeyError), replaced([(module, "function", lambda: "mine")]):
        raise KeyError(original(module, "function"))

    assert module.function is usual


def test_a_replacement_tells_what_it_stands_for() -> None:
    usual, other = math.sqrt, math.exp
    for in_all_threads in (False, True):
        with replaced([(math, "sqrt", lambda x: -x)], in_all_threads=in_all_threads):
            assert math.sqrt(4) == -4
            assert without_replacement(math.sqrt) is usual
            assert without_replacement(other) is other
    assert without_replacement(math.sqrt) is usual


def test_what_a_program_replaces_between_two_contexts_is_what_the_second_one_restores(monkeypatch):
    def of_the_program(value):
        return value

    with replaced([(math, "floor", usual)]):
        assert math.floor() == "usual"
    monkeypatch.setattr(math, "floor", of_the_program)
    with replaced([(math, "floor", usual)]):
        assert (math.floor(), original(math, "floor")) == ("usual", of_the_program)

    assert math.floor is of_the_program


def wrapped(function):
    return lambda *args: ("mine", function(*args))


def test_replacements_that_are_made_once_are_made_anew_where_a_program_replaced_something(monkeypatch):
    made = []

    def make(function):
        made.append(function)
        return wrapped(function)

    usual_floor, usual_ceil = math.floor, math.ceil
    table = Replacements([(math, "floor", make), (math, "ceil", make)])
    for _ in range(3):
        with replaced(table, in_all_threads=True):
            assert (math.floor(1.5), math.ceil(1.5)) == (("mine", 1), ("mine", 2))
            assert original(math, "floor") is usual_floor
    assert made == [usual_floor, usual_ceil]

    monkeypatch.setattr(math, "floor", lambda value: "of the program")
    with replaced(table, in_all_threads=True):
        assert math.floor(1.5) == ("mine", "of the program")
    monkeypatch.undo()
    with replaced(table, in_all_threads=True):
        assert math.floor(1.5) == ("mine", 1)

    assert len(made) == 4
    assert (math.floor, math.ceil) == (usual_floor, usual_ceil)


def test_replacements_that_are_made_once_nest_in_themselves_and_in_others():
    usual_floor = math.floor
    table = Replacements([(math, "floor", wrapped)])
    contexts = [replaced(table, in_all_threads=True) for _ in range(2)]
    other = replaced([(math, "floor", lambda value: "other")])

    contexts[0].__enter__()
    other.__enter__()
    contexts[1].__enter__()
    seen = [math.floor(1.5)]
    contexts[0].__exit__(None, None, None)
    seen.append(math.floor(1.5))
    contexts[1].__exit__(None, None, None)
    seen.append(math.floor(1.5))
    other.__exit__(None, None, None)

    assert seen == [("mine", 1), ("mine", 1), "other"]
    assert math.floor is usual_floor


def test_what_is_put_in_a_place_of_a_table_meanwhile_stays(monkeypatch):
    table = Replacements([(math, "floor", wrapped), (math, "ceil", wrapped)])
    usual_ceil = math.ceil
    monkeypatch.setattr(math, "floor", math.floor)  # which it has again at the end

    with replaced(table, in_all_threads=True):
        math.floor = usual
        assert math.ceil(1.5) == ("mine", 2)
    assert (math.floor, math.ceil) == (usual, usual_ceil)
    with replaced(table, in_all_threads=True):
        assert original(math, "floor") is usual


@pytest.mark.parametrize("in_all_threads", [False, True])
def test_nothing_is_replaced_where_one_of_several_cannot_be(module, in_all_threads):
    places = [(module, "function", lambda: "mine"), (int, "__add__", wrapped(int.__add__)), (module, "limit", 2)]

    with pytest.raises(TypeError), replaced(places, in_all_threads=in_all_threads):
        raise AssertionError

    assert (module.function, module.limit) == (usual, 1)
    with replaced([(module, "function", lambda: "again")], in_all_threads=in_all_threads):
        assert module.function() == "again"
    assert module.function is usual


def test_inherited_methods_of_a_table_are_inherited_again_at_the_end():
    table = Replacements([(Owner, "method", wrapped), (Owner, "make", lambda make: classmethod(lambda cls: 1))])
    for _ in range(2):
        with replaced(table, in_all_threads=True):
            assert (Owner().method(), Owner.make()) == (("mine", "method of Base"), 1)
        assert "method" not in vars(Owner)
        assert Owner.make() == "Owner"


def test_other_names_of_what_a_table_replaces(module):
    table = Replacements([(math, "floor", wrapped), (math, "ceil", wrapped)])
    module.down, module.items = math.floor, []

    with replaced(table, in_all_threads=True):
        module.up = math.ceil
    down, up = table.of_other_names(module)

    assert (down[:2], up) == ((module, "down"), (module, "up", module.up))
    assert (down[2](1.5), up[2](1.5)) == (("mine", 1), ("mine", 2))
    assert table.of_other_names(types.ModuleType("empty")) == []
