"""The folders of ComfyUI 0.3.64 that this pack names."""

from __future__ import annotations

import os

added: list[tuple[str, str]] = []


def get_user_directory() -> str:
    return os.environ["OLD_HOST_USER"]


def add_model_folder_path(folder_name: str, full_folder_path: str, is_default: bool = False) -> None:
    added.append((folder_name, full_folder_path))

folder_names_and_paths: dict[str, tuple[list[str], set[str]]] = {}
