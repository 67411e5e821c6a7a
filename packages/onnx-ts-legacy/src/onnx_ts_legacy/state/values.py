"""What the variables of a TorchScript program stand for while it is converted.

Numbers, strings and None are themselves; a size known only at run time is a ``torch.SymInt``. Everything that the
program can change in place keeps its contents in ``state``, which is written through a :class:`Heap` only: a heap can
run the branches of an if one after the other, each from the same start, and say what each of them changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy.errors import DependentCallError, ScriptValueError

__all__ = [
    "AttributeTable",
    "Call",
    "Changes",
    "Content",
    "DictRef",
    "Heap",
    "ListRef",
    "Maybe",
    "Mutable",
    "ObjectRef",
    "Pieces",
    "Poison",
    "RuntimeBool",
    "RuntimeFloat",
    "SequenceState",
    "Shared",
    "Stale",
    "Storage",
    "Tensor",
    "Uninitialized",
    "VectorState",
    "View",
    "is_runtime",
    "presence",
]


class Mutable:
    """Something whose contents the program can change.

    Attributes:
        state: The contents: never changed themselves, always replaced.
        frame: Innermost branch in which the object was created.
    """

    __slots__ = ("frame", "state")

    def __init__(self, heap: Heap, state: Any) -> None:
        self.state = state
        self.frame = heap.frame


class Shared(Mutable):
    """Something that several variables may show, as is known only at run time.

    Attributes:
        aliases: Others of its kind that are the same as this one on some paths of the program.
    """

    __slots__ = ("aliases",)

    def __init__(self, heap: Heap, state: Any) -> None:
        super().__init__(heap, state)
        self.aliases: set[Self] = set()

    def link(self, other: Self) -> None:
        """Note that the two may be the same: once one is written to, the other must not be read any more."""
        if other is not self:
            self.aliases.add(other)
            other.aliases.add(self)

    @property
    def shown(self) -> list[Self]:
        """This one and those that it may be the same as."""
        return [self, *self.aliases]


Changes = dict[Mutable, Any]


class Heap:
    """Writes the contents of mutable objects, and takes writes back at the end of a branch.

    Attributes:
        repeated: Numbers of the branches being run that are bodies of loops.
    """

    def __init__(self) -> None:
        self._frames: list[tuple[int, Changes]] = []
        self.repeated: list[int] = []
        self._count = 0
        self._watched: list[set[Mutable]] = []

    @property
    def frame(self) -> int:
        """Number of the innermost branch that is being run; 0 outside of all."""
        return self._frames[-1][0] if self._frames else 0

    def frames(self) -> frozenset[int]:
        """Return the numbers of the branches being run; objects of other ones are not there any more."""
        return frozenset((0, *(number for number, _ in self._frames)))

    def write(self, target: Mutable, state: Any) -> None:
        """Replace the contents of ``target``; other lists or dicts that it may be must not be read any more."""
        self.merge(target, state)
        if isinstance(target, ListRef | DictRef):
            for other in target.aliases:
                self.merge(other, _STALE)

    def merge(self, target: Mutable, state: Any) -> None:
        """Replace the contents of ``target`` by what several paths left there, with what each knew of its aliases."""
        if self._frames and target.frame != self.frame:
            self._frames[-1][1].setdefault(target, target.state)
        for written in self._watched:
            written.add(target)
        target.state = state

    @contextmanager
    def watching(self) -> Iterator[set[Mutable]]:
        """Collect the objects that are written to meanwhile, also those whose writes are undone."""
        written: set[Mutable] = set()
        self._watched.append(written)
        try:
            yield written
        finally:
            self._watched.pop()

    @contextmanager
    def body(self) -> Iterator[Changes]:
        """Run the body of a loop, which is a branch that may follow itself."""
        with self.branch() as changes:
            self.repeated.append(self.frame)
            try:
                yield changes
            finally:
                self.repeated.pop()

    @contextmanager
    def branch(self) -> Iterator[Changes]:
        """Run a branch; afterwards its writes to older objects are undone and stand in the mapping it yields."""
        before: Changes = {}
        after: Changes = {}
        self._count += 1
        self._frames.append((self._count, before))
        try:
            yield after
        finally:
            self._frames.pop()
            for target, state in before.items():
                after[target] = target.state
                target.state = state

    def pending(self) -> Changes:
        """Return what the objects that the innermost branch changed held before."""
        return dict(self._frames[-1][1])

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Create objects that are older than all branches."""
        frames, self._frames = self._frames, []
        try:
            yield
        finally:
            self._frames = frames

    @contextmanager
    def assuming(self, changes: Mapping[Mutable, Any]) -> Iterator[None]:
        """Read the program as it is after ``changes``."""
        before = {target: target.state for target in changes}
        for target, state in changes.items():
            target.state = state
        try:
            yield
        finally:
            for target, state in before.items():
                target.state = state


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """Contents of a storage.

    Attributes:
        value: The ONNX value, or None where only ``number`` is there yet.
        number: What a 0-d integer tensor holds, where it was made of a size or a literal.
    """

    value: ir.Value | None
    number: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Stale:
    """Contents of a storage that must not be read: another one, which may be the same memory, was written to.

    Attributes:
        reason: What the exception for reading them says.
    """

    reason: str
    value: None = dataclasses.field(default=None, init=False)
    number: None = dataclasses.field(default=None, init=False)

    def error(self) -> ScriptValueError:
        """Return the exception for reading them."""
        return ScriptValueError(self.reason)


class Storage(Shared):
    """Memory of a tensor that is not a view of another one; ``state`` is a :class:`Content`, or :class:`Stale`.

    Attributes:
        fake: Form of it; None while that is not settled.
        origin: Name of the input or attribute that the memory belongs to, or None.
        line: Where the program last wrote to it; empty where that is not known.
    """

    __slots__ = ("fake", "line", "origin", "start")

    def __init__(
        self, heap: Heap, value: ir.Value | None, fake: Any, *, origin: Any = None, number: Any = None
    ) -> None:
        super().__init__(heap, Content(value, number))
        self.fake, self.origin = fake, origin
        self.start: Content = self.state
        self.line = ""

    @property
    def is_changed(self) -> bool:
        """Tell whether something was written to it."""
        return self.state is not self.start


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator, with the place of the tensor that its result is a view of.

    Attributes:
        overload: The operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
        position: Index in ``args`` of the tensor that is viewed.
        output: Index of the result, or None if there is one only.
    """

    overload: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int
    output: int | None


class View:
    """A tensor that shows a part of another one.

    Attributes:
        parent: What it is a view of.
        call: The call that makes it.
        fake: Form of it.
        cached: The value that the parent had and what it gave, in which scope.
    """

    __slots__ = ("cached", "call", "fake", "parent")

    def __init__(self, parent: Storage | View, call: Call, fake: Any) -> None:
        self.parent, self.call, self.fake = parent, call, fake
        self.cached: tuple[ir.Value, ir.Value, Any] | None = None

    @property
    def base(self) -> Storage:
        """The memory that the view shows."""
        node: Storage | View = self
        while isinstance(node, View):
            node = node.parent
        return node


class Tensor(Mutable):
    """A tensor variable; ``state`` holds what it refers to and the forms that it may have.

    There is one form unless the branches of an if gave tensors of different ranks.
    """

    __slots__ = ()

    def __init__(self, heap: Heap, node: Storage | View, *forms: Any) -> None:
        super().__init__(heap, (node, forms or (node.fake,)))

    @property
    def node(self) -> Storage | View:
        """What the variable refers to."""
        node: Storage | View = self.state[0]
        return node

    @property
    def storage(self) -> Storage:
        """The memory behind it."""
        node = self.node
        return node.base if isinstance(node, View) else node

    @property
    def forms(self) -> tuple[Any, ...]:
        """The dtypes and shapes that it may have."""
        forms: tuple[Any, ...] = self.state[1]
        return forms

    @property
    def fake(self) -> Any:
        """Its dtype and shape.

        Raises:
            ScriptValueError: If several ranks are possible here.
        """
        forms = self.state[1]
        if len(forms) != 1:
            ranks = sorted({form.dim() for form in forms})
            raise ScriptValueError(
                f"A tensor has rank {' or '.join(map(str, ranks))} here, depending on an earlier condition of the "
                "program. Test its length first (`if len(x):`), or give it one rank everywhere."
            )
        return forms[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Pieces:
    """How a tensor was cut to a list.

    Attributes:
        tensor: What was cut.
        size: Size of all pieces but the last; None if each lost the dimension.
        dim: Dimension that was cut.
    """

    tensor: Tensor
    size: Any
    dim: int


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceState:
    """Contents of a list whose length is known only at run time.

    Attributes:
        sequence: An ONNX sequence, which holds copies of the elements.
        element: Form that describes every element.
        memory: Stands for the memories of the elements: one that is linked with all of them.
        pieces: How the list was made, if it was by cutting a tensor.
    """

    sequence: ir.Value
    element: Any
    memory: Storage
    pieces: Pieces | None = None

    @property
    def value(self) -> ir.Value:
        """The sequence.

        Raises:
            ScriptValueError: If an element was changed in place since it was made.
        """
        if isinstance(self.memory.state, Stale):
            raise self.memory.state.error()
        return self.sequence


@dataclasses.dataclass(frozen=True, slots=True)
class VectorState:
    """Contents of a list of numbers known only at run time.

    Attributes:
        tensor: A vector of INT64, DOUBLE or BOOL, which nothing changes.
    """

    tensor: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the numbers."""
        dtype: torch.dtype = self.tensor.fake.dtype
        return dtype


class ListRef(Shared):
    """A list; ``state`` is a tuple of its elements, a :class:`SequenceState` or a :class:`VectorState`."""

    __slots__ = ()

    @property
    def items(self) -> tuple[Any, ...]:
        """The elements.

        Raises:
            ScriptValueError: If the length is not known.
        """
        if isinstance(self.state, Poison):
            raise self.state.error()
        if isinstance(self.state, SequenceState | VectorState):
            raise ScriptValueError("The length of a list is known at run time only, but is needed to convert this.")
        items: tuple[Any, ...] = self.state
        return items


class DictRef(Shared):
    """A dict; ``state`` is a dict that is never changed in place."""

    __slots__ = ()

    @property
    def items(self) -> dict[Any, Any]:
        """The entries."""
        if isinstance(self.state, Poison):
            raise self.state.error()
        items: dict[Any, Any] = self.state
        return items


class ObjectRef(Mutable):
    """A module, or an instance of a class of the program; ``state`` holds the attributes that were read or written.

    Attributes:
        path: Qualified name of a module, or None for another object.
        source: The torch object that the other attributes are read from, or None.
    """

    __slots__ = ("path", "source")

    def __init__(self, heap: Heap, path: str | None, source: Any) -> None:
        super().__init__(heap, {})
        self.path, self.source = path, source


AttributeTable = dict[tuple[str, str], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeBool:
    """A truth value known only at run time: a 0-d value, or a relation between sizes."""

    value: ir.Value | None = None
    relation: sympy.Basic | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeFloat:
    """A float known only at run time, as a 0-d DOUBLE."""

    value: ir.Value


@dataclasses.dataclass(frozen=True, slots=True)
class Maybe:
    """A variable that may be None, as is known only at run time.

    Attributes:
        present: Whether it is not None.
        value: What it is then; otherwise something of the same kind that is never read.
    """

    present: RuntimeBool
    value: Any


class Uninitialized:
    """A variable on a path of the program on which it is never read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Poison:
    """A variable that ONNX cannot hold; it matters only if it is read.

    Attributes:
        reason: Why.
        error_type: Class of the exception for reading it.
    """

    reason: str
    error_type: type[ScriptValueError] = ScriptValueError

    @classmethod
    def unconverted(cls, operator: str) -> Poison:
        """Return what a call of an operator leaves that could not be converted."""
        return cls(f"It depends on {operator}, which was not converted.", DependentCallError)

    @classmethod
    def of_error(cls, error: ScriptValueError) -> Poison:
        """Return a variable that an error says cannot be held."""
        return cls(str(error), DependentCallError if isinstance(error, DependentCallError) else ScriptValueError)

    def error(self) -> ScriptValueError:
        """Return the exception for reading it."""
        return self.error_type(self.reason)


def is_runtime(value: object) -> bool:
    """Tell whether a number or truth value is known at run time only."""
    return isinstance(value, torch.SymInt | RuntimeBool | RuntimeFloat)


def presence(value: Any) -> tuple[Any, Any]:
    """Return whether a variable is not None, and what it is then."""
    if isinstance(value, Maybe):
        return value.present, value.value
    return (False, Uninitialized()) if value is None or isinstance(value, Uninitialized) else (True, value)


_STALE = Poison(
    "A list or dict is read after it was changed through another variable that is the same one on only some paths of "
    "the program, depending on a condition known only at run time; copy it before it is changed."
)
