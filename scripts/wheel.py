#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs built programs and the package in python/ into a wheel: scripts/wheel.py PROGRAMS OUT PLATFORM

The command and the program that checks plugins go where `pip` puts programs, the NCCL plugins into `lib` beside them: there the command
looks for its plugin. The same inputs give the same bytes: names are sorted, and times are those of SOURCE_DATE_EPOCH, else 1980.
"""

import base64
import hashlib
import os
import re
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE_MAX = 40 * 1000 * 1000
PROGRAMS = ("linkwise", "linkwise-plugin-check")
PLUGINS = ("liblinkwise_nccl.so", "liblinkwise_nccl_net.so")
MODULE = "liblinkwise_python.so"


def version() -> str:
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'(?m)^\[workspace\.package\]\nversion = "([^"]+)"', text).group(1)


def metadata(of: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        "Name: linkwise",
        f"Version: {of}",
        "Summary: Choose GPUs, links and NCCL settings by measured bandwidth",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Programming Language :: Rust",
        "Requires-Python: >=3.9",
        "Provides-Extra: numpy",
        'Requires-Dist: numpy; extra == "numpy"',
        "Provides-Extra: torch",
        'Requires-Dist: torch>=2.6; extra == "torch"',
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (ROOT / "docs/python.md").read_text()


def entries(programs: Path, platform: str) -> dict:
    """Contents by name in the wheel, with True for what is executable."""
    of, out = version(), {}
    for path in sorted((ROOT / "python").rglob("*")):
        inside = path.relative_to(ROOT / "python")
        if inside.parts[0] in ("linkwise", "linkwise_step.py") and path.suffix in (".py", ".pyi", ".typed"):
            out[str(inside)] = (path.read_bytes(), False)
    out["linkwise/_native.abi3.so"] = ((programs / MODULE).read_bytes(), True)
    data, info = f"linkwise-{of}.data", f"linkwise-{of}.dist-info"
    for name in PROGRAMS:
        out[f"{data}/scripts/{name}"] = ((programs / name).read_bytes(), True)
    for name in PLUGINS:
        out[f"{data}/data/lib/{name}"] = ((programs / name).read_bytes(), True)
    wheel = f"Wheel-Version: 1.0\nGenerator: linkwise\nRoot-Is-Purelib: false\nTag: cp39-abi3-{platform}\n"
    handlers = "[torchrun.handlers]\nlinkwise = linkwise.torch.rendezvous:generator\n"
    texts = {"METADATA": metadata(of), "WHEEL": wheel, "entry_points.txt": handlers, "licenses/LICENSE": (ROOT / "LICENSE").read_text()}
    out.update({f"{info}/{name}": (text.encode(), False) for name, text in texts.items()})
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, (content, _) in sorted(out.items()))
    out[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), False)
    return out


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> None:
    programs, folder, platform = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    at = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)  # a zip file knows no time before 1980
    when = time.gmtime(at)[:6]
    path = folder / f"linkwise-{version()}-cp39-abi3-{platform}.whl"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (content, executable) in sorted(entries(programs, platform).items()):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, content)
    size = part.stat().st_size
    if size > SIZE_MAX:
        part.unlink()
        sys.exit(f"error: the wheel has {size:,} bytes; at most {SIZE_MAX:,} were meant")
    part.rename(path)
    print(f"{path}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
