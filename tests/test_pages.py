"""What pages and workflows say about the repository is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import noxfile
from tools import rooms
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob(".github/*.md"),
]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
PACKAGES = list(Workspace(ROOT).distributions)


def is_session(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("nox.session")


def session_name(function: ast.FunctionDef) -> str:
    given = [
        keyword.value.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    ]
    return str(given[0]) if given else function.name


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {session_name(each) for each in functions if any(map(is_session, each.decorator_list))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sessions_that_a_page_mentions_exist(page: Path) -> None:
    mentioned = set(re.findall(r"nox -s \"?([a-z-]+)", page.read_text()))

    assert mentioned <= sessions()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)

    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]

    assert missing == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_sessions_that_a_workflow_runs_exist(workflow: Path) -> None:
    text = workflow.read_text()
    named = set(re.findall(r"nox -s \"?([a-z-]+)", text))
    for matrix in re.findall(r"session: \[(.*)\]", text):
        named |= {name.strip() for name in matrix.split(",")}

    assert named
    assert named <= sessions()


def listed(key: str, text: str) -> set[str]:
    """The values that a workflow's matrices give to a key."""
    return {value for found in re.findall(rf"\b{key}: \[(.*)\]", text) for value in re.findall(r'"([^"]+)"', found)}


def test_the_nightly_workflow_covers_what_the_sessions_are_parametrized_by() -> None:
    text = (ROOT / ".github/workflows/nightly.yml").read_text()

    assert listed("torch", text) == set(noxfile.TORCH)
    assert listed("opsets", text) == set(noxfile.OPSETS)
    assert listed("python", text) == set(noxfile.PYTHONS)


def test_pages_and_workflows_name_test_sessions_in_full() -> None:
    runs = {f"tests(package='{p}', torch='{t}', opsets='{o}')" for p, t, o in (run.args for run in noxfile.RUNS)}
    tags = {tag for run in noxfile.RUNS for tag in run.tags}
    for page in (*PAGES, *WORKFLOWS):
        text = page.read_text().replace("$PACKAGE", PACKAGES[0])
        named = re.findall(r"nox -s \"(tests\(.*?\))\"", text)
        tagged = [tag for tag in re.findall(r"nox -s tests -t ([\w.-]+)", text) if "$" not in tag]

        assert set(named) <= runs, page
        assert set(tagged) <= tags, page


def test_the_ci_runs_the_test_command_of_the_readme_and_nothing_else() -> None:
    command = "python3 -m pip install nox && python3 -m nox"
    script = (ROOT / ".ci/run").read_text().splitlines()

    lines = [line for line in script if line and not line.startswith(("#", "set ", "cd "))]

    assert lines == [command]
    assert command in (ROOT / "README.md").read_text().splitlines()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_named_where_packages_are_listed(package: str) -> None:
    assert f"/packages/{package}/" in (ROOT / ".github/CODEOWNERS").read_text()
    assert f"(packages/{package})" in (ROOT / "README.md").read_text()
    assert (ROOT / f"docs/packages/{package}.md").exists()
    assert (ROOT / f"packages/{package}/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def source(path: Path) -> str:
    """A module and its stub: the names of a package that loads its modules lazily stand there alone."""
    stub = path.with_suffix(".pyi")
    return path.read_text() + (stub.read_text() if stub.exists() else "")


SOURCES = {str(path.relative_to(ROOT)): source(path) for path in ROOT.glob("packages/*/src/**/*.py")}
MODULES = rooms.modules(SOURCES)
IMPORTED = "|".join(sorted({module.partition(".")[0] for module in MODULES}))


def exists(path: str, page: Path) -> bool:
    """Whether there is such a file or folder from the root, the source of a package, or the folder of the page."""
    return any((top / path).exists() for top in (ROOT, *ROOT.glob("packages/*/src"), page.parent))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_a_page_exist(page: Path) -> None:
    text = page.read_text().replace("packages/onnx-something", "packages")
    named = re.findall(rf"(?<![\w/.@-])(?:packages|tools|{IMPORTED})/[\w/.-]*\w/?", text)

    assert [path for path in named if not exists(path, page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_on_a_page_exist(page: Path) -> None:
    """A dotted name leads to a module, and what follows stands in it; the page may also say to write it."""
    text, missing = page.read_text(), []
    for name in re.findall(rf"(?<![\w/.-])(?:{IMPORTED})(?:\.[a-zA-Z_]\w*)+", text):
        parts = name.split(".")
        count = max(n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in MODULES)
        inside = parts[count : count + 1]
        if (
            inside
            and f"`{inside[0]}.py`" not in text
            and not re.search(rf"\b{inside[0]}\b", SOURCES[MODULES[".".join(parts[:count])]])
        ):
            missing.append(name)

    assert missing == []


def test_the_page_of_the_rooms_names_each_of_them() -> None:
    text = (ROOT / "docs/where-things-live.md").read_text()

    assert [room for room in rooms.folders(SOURCES) if f"| `{room}/` |" not in text] == []
