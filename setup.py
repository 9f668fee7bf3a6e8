"""Packages of a checkout: folders of the package are links to others, which a clone without links has as text files."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {f"llmviewer.{path.name}": path.name for path in Path("llmviewer").iterdir() if Path(path.name).is_dir()}
IS_LINKED = all(Path("llmviewer", name).is_dir() for name in FOLDERS.values())
BESIDE = [package for name in FOLDERS.values() for package in find_packages(include=[name, f"{name}.*"])]

setup(
    packages=sorted({*find_packages(include=["llmviewer*"]), *(f"llmviewer.{package}" for package in BESIDE)}),
    package_dir={} if IS_LINKED else FOLDERS,
)
