#!/usr/bin/env bash
# list-program.sh LIST PROGRAM...: cargo's runner for scripts/test.sh. It runs nothing: it adds folder, library path and program to LIST.
printf '%s\t%s\t%s\n' "$PWD" "${LD_LIBRARY_PATH:-}" "$2" >>"$1"
