# SPDX-License-Identifier: Apache-2.0
"""A recipe for Spack: builds linkwise from a checkout.

    spack repo add packaging/spack
    spack develop --path . linkwise@main    # in an environment; the source is this checkout
    spack install
"""

from spack.package import *


class Linkwise(Package):
    """Choose GPUs, links and NCCL settings by measured bandwidth."""

    license("Apache-2.0")

    # There is no public repository yet: `spack develop --path` gives the source.
    version("main")

    depends_on("rust@1.89:", type="build")
    depends_on("c", type="build")  # the bundled SQLite

    conflicts("platform=darwin", msg="linkwise runs on Linux")
    conflicts("platform=windows", msg="linkwise runs on Linux")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--release", "-p", "linkwise", "-p", "nccl-plugin", "-p", "nccl-net", "-j", str(make_jobs))
        mkdirp(prefix.bin, prefix.lib, prefix.share.man.man1)
        built = "target/release"
        for program in ("linkwise", "linkwise-plugin-check"):
            install(join_path(built, program), prefix.bin)
        for library in ("liblinkwise_nccl.so", "liblinkwise_nccl_net.so"):
            install(join_path(built, library), prefix.lib)
        linkwise = Executable(join_path(prefix.bin, "linkwise"))
        linkwise("man", prefix.share.man.man1)

    def test_first_answer(self):
        """the command answers"""
        out = Executable(self.prefix.bin.linkwise)("nccl", "explain", "--cluster", "h100", output=str)
        assert "all_reduce" in out.lower().replace("allreduce", "all_reduce")
