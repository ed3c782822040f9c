"""The page from empty machines to a model is run literally, from its first command to its last."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from interruptible import SECUREFL
from processes import ONE_THREAD, Process

from securefl.runs.folder_reader import read_run
from securefl_cli.main import main
from securefl_keys.loading import load_all

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/three-hospitals.md").read_text()
HOSPITALS = ("north", "south", "east")
MACHINES = ("authority", "server", *HOSPITALS)
PORT = "7443"
