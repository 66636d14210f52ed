#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the software bill of materials of a release as CycloneDX 1.5 JSON: scripts/sbom.py VERSION

The components are the crates that the shipped programs are linked from, as `cargo metadata` resolves Cargo.lock: no tests, no programs of the
build. The same lock file gives the same bytes.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("linkwise", "nccl-plugin", "nccl-net", "python")
TARGET = "x86_64-unknown-linux-gnu"


def metadata() -> dict:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(of: dict) -> dict:
    """The identifiers of packages that the shipped programs contain, with those that each depends on."""
    nodes = {node["id"]: node for node in of["resolve"]["nodes"]}
    todo = [p["id"] for p in of["packages"] if p["name"] in SHIPPED and p["id"] in of["workspace_members"]]
    assert len(todo) == len(SHIPPED), todo
    found = {}
    while todo:
        at = todo.pop()
        if at in found:
            continue
        normal = [d["pkg"] for d in nodes[at]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
        found[at] = sorted(normal)
        todo.extend(normal)
    return found


def purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, checksums: dict) -> dict:
    out = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package)}
    if package["license"]:
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if package["description"]:
        out["description"] = " ".join(package["description"].split())
    if package["repository"]:
        out["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        out["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return out


def main() -> None:
    version = sys.argv[1]
    of = metadata()
    packages = {p["id"]: p for p in of["packages"]}
    dependencies = linked(of)
    lock_text = (ROOT / "Cargo.lock").read_text()
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.loads(lock_text)["package"]}
    shipped = sorted((packages[i] for i in dependencies), key=lambda p: (p["name"], p["version"]))
    root = {"type": "application", "bom-ref": f"linkwise@{version}", "name": "linkwise", "version": version}
    roots = [purl(p) for p in shipped if p["name"] in SHIPPED and p["source"] is None]
    edges = [{"ref": root["bom-ref"], "dependsOn": roots}]
    edges += sorted(
        ({"ref": purl(packages[at]), "dependsOn": sorted({purl(packages[d]) for d in to})} for at, to in dependencies.items()),
        key=lambda e: e["ref"],
    )
    # The number names the content, not the time.
    serial = uuid.UUID(hashlib.sha256((version + lock_text).encode()).hexdigest()[:32], version=4)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**root, "licenses": [{"expression": "Apache-2.0"}]}},
        "components": [component(p, checksums) for p in shipped],
        "dependencies": edges,
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
