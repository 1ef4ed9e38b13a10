"""Runs where the job runs, with its interpreter: prints what the job will be made with, as JSON.

Stands alone, for the oldest Python that an image may hold; cvs sends its text and never imports it.
"""

import json
import platform
import sys
from pathlib import Path
from typing import Any, Dict


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


def main() -> None:
    """Print one JSON object of texts."""
    facts = {"python": platform.python_version(), "interpreter": sys.executable, "kernel": platform.release()}
    import torch

    facts["torch"] = torch.__version__
    facts.update(gpu_facts(torch))
    facts.update(file_facts())
    print(json.dumps(facts))


main()
