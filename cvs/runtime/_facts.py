"""Runs where the job runs, with its interpreter: prints what the job will be made with, as JSON.

Stands alone, for the oldest Python that an image may hold; cvs sends its text and never imports it.
"""

import importlib.util
import json
import platform
import runpy
import sys
from pathlib import Path
from typing import Any, Dict, Optional


def gpu_facts(torch: Any) -> Dict[str, str]:
    """Names of the GPUs and versions of the libraries that torch was built with."""
    facts = {}
    if torch.version.hip:
        facts["hip"] = torch.version.hip
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        facts["gpus"] = ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
        version = torch.cuda.nccl.version()
        facts["rccl" if torch.version.hip else "nccl"] = ".".join(str(part) for part in version)
    return facts


def file_facts() -> Dict[str, str]:
    """Versions that only files tell: ROCm and the amdgpu driver."""
    files = {"rocm": "/opt/rocm/.info/version", "amdgpu_driver": "/sys/module/amdgpu/version"}
    return {name: Path(path).read_text().strip() for name, path in files.items() if Path(path).is_file()}


def version_for_cpus() -> Optional[str]:
    """Version of a PyTorch that was built for CPUs alone, told without the seconds that it takes to load."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin or "").with_name("version.py") if spec else None
    if file is None or not file.is_file():
        return None
    built = runpy.run_path(str(file))
    return None if built.get("hip") or built.get("cuda") else built.get("__version__")


def torch_facts() -> Dict[str, str]:
    """Version of PyTorch, and what a build for GPUs has to tell."""
    version = version_for_cpus()
    if version:
        return {"torch": version}
    import torch

    return {"torch": torch.__version__, **gpu_facts(torch)}


def main() -> None:
    """Print one JSON object of texts."""
    facts = {"python": platform.python_version(), "interpreter": sys.executable, "kernel": platform.release()}
    facts.update(torch_facts())
    facts.update(file_facts())
    print(json.dumps(facts))


main()
