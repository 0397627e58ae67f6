#!/usr/bin/env bash
# What only a GPU can show, in under 8 minutes: conformance on it, the tests that need it, and throughput.
#
#   benchmarks/gpu_check.sh [OUTPUT_DIRECTORY]
#
# Every part has a time limit of its own, so that one that hangs costs the others nothing, and the table at the end holds
# whatever was measured. Without a GPU it says so, and does the same on the CPU in tiny sizes. Without network or
# packages it names what is missing, and goes on with the engines there are.
#
#   PYTHON   the interpreter to use; default: .venv/bin/python, else python3
#   SCALE    multiplies all time limits; default 1
set -u
cd "$(dirname "$0")/.." || exit 2

OUT=${1:-gpu_check}
SCALE=${SCALE:-1}
if [ -z "${PYTHON:-}" ]; then
    PYTHON=.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
mkdir -p "$OUT" || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false # two engines share the GPU
START=$SECONDS

limit() { awk -v seconds="$1" -v scale="$SCALE" 'BEGIN { printf "%d", seconds * scale + 0.5 }'; }

# part NAME SECONDS COMMAND...: runs a command under a limit; its output goes to OUT/NAME.txt, its end to OUT/parts.md.
part() {
    local name=$1 allowed begin=$SECONDS code
    allowed=$(limit "$2")
    shift 2
    echo "== $name (at most $allowed s)"
    timeout --kill-after=5 "$allowed" "$@" >"$OUT/$name.txt" 2>"$OUT/$name.err"
    code=$?
    case $code in
        0) result=passed ;;
        124 | 137) result="stopped after $allowed s" ;;
        5) result="nothing to do here" ;; # of pytest: no test selected
        *) result="FAILED (exit code $code, see $name.txt and $name.err)" ;;
    esac
    echo "   $result, $((SECONDS - begin)) s"
    printf '| %s | %s | %s s | %s |\n' "$name" "$result" "$((SECONDS - begin))" "$(summary "$OUT/$name.txt")" >>"$OUT/parts.md"
    return 0
}

# The last line of pytest's that counts.
summary() { grep -E '[0-9]+ (passed|failed|skipped|error)' "$1" | tail -1 | tr -d '=' | sed 's/^ *//; s/ *$//; s/|/\//g'; }

: >"$OUT/parts.md"
echo "== what is here"
missing_of() { # packages an engine needs that can't be imported
    "$PYTHON" - "$@" <<'PY'
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
PY
}
COMMON="numpy gymnasium optree safetensors array_api_compat array_api_extra"
missing=$(missing_of $COMMON jax flax optax brax torch pytest)
if [ -n "$missing" ]; then
    echo "   missing: $missing; trying to install (at most $(limit 40) s)"
    timeout "$(limit 40)" "$PYTHON" -m pip install --quiet --disable-pip-version-check $(echo "$missing" | tr '_' '-') \
        >"$OUT/pip.txt" 2>&1 || echo "   they can't be installed; see $OUT/pip.txt"
fi
missing=$(missing_of $COMMON)
if [ -n "$missing" ]; then
    echo "error: without $missing nothing runs: install them into the environment of $PYTHON." >&2
    exit 3
fi
ENGINES=
for engine in jax torch; do
    needs=torch
    [ "$engine" = jax ] && needs="jax flax optax"
    missing=$(missing_of $needs)
    if [ -n "$missing" ]; then
        echo "   no $engine engine: missing $missing"
        printf '| %s | left out | 0 s | missing: %s |\n' "$engine" "$missing" >>"$OUT/parts.md"
    else
        ENGINES="$ENGINES $engine"
    fi
done
[ -n "$ENGINES" ] || { echo "error: there is no engine to check." >&2; exit 3; }

timeout "$(limit 40)" "$PYTHON" - $ENGINES >"$OUT/versions.md" 2>"$OUT/versions.err" <<'PY'
import importlib.metadata as metadata, os, platform, sys
from multippo.backends import load_engine
print(f"- Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} processors")
for package in ("numpy", "torch", "triton", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax", "brax"):
    try:
        print(f"- {package} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        pass
for name in sys.argv[1:]:
    engine = load_engine(name)
    print(f"- engine {name}: sees {', '.join(engine.devices())}; default numerics {engine.numerics()}")
    print(f"gpu {name} {'no' if engine.device_name().startswith('cpu') else 'yes'}", file=sys.stderr)
PY
cat "$OUT/versions.md"
# Of the suite's some thousand cases: the modules whose arithmetic a GPU does otherwise, in single precision.
selection() {
    on_gpu "$1" && echo "float32 and (Dense or LSTM or GRU or Sampler or Normalizer)" || echo "float32 and Dense"
}
on_gpu() { grep -q "^gpu $1 yes" "$OUT/versions.err"; }
for engine in $ENGINES; do
    on_gpu "$engine" || echo "   the $engine engine sees no GPU: it is checked on the CPU, in tiny sizes"
done

PLUGIN=
"$PYTHON" -c "
import importlib.metadata as m, sys
sys.exit(not any(p.value.startswith('multippo') for p in m.entry_points(group='pytest11')))" || PLUGIN="-p multippo.pytest_plugin"
if [ -z "$(missing_of pytest)" ]; then
    test_run() { # NAME SECONDS ARGUMENTS...: pytest, with warnings left as they are: other versions have others
        local name=$1 seconds=$2
        shift 2
        part "$name" "$seconds" "$PYTHON" -m pytest -q -W default -p no:cacheprovider $PLUGIN "$@"
    }
    test_run tests 80 tests/backends/torch/test_compiled_layers.py tests/backends/torch/test_compiling.py \
        tests/backends/test_devices.py tests/backends/test_matmul_precision.py \
        tests/cases/test_case_51_matrix_precision.py tests/cases/test_case_38_compiled_recurrence.py \
        -m "not nightly" -k "gpu or cuda or device"
    # Both engines at once: they mostly compile, on processors of their own.
    for engine in $ENGINES; do
        test_run "conformance-$engine" 90 conformance/test_conformance.py --backend "$engine" --quick \
            -k "$(selection "$engine")" --maxfail 20 &
    done
    wait
else
    printf '| tests and conformance | left out | 0 s | missing: pytest |\n' >>"$OUT/parts.md"
fi

for engine in $ENGINES; do
    if on_gpu "$engine"; then
        part "throughput-$engine" 80 "$PYTHON" benchmarks/throughput.py --backend "$engine" --seconds "$(limit 58)"
    else
        part "throughput-$engine" 80 "$PYTHON" benchmarks/throughput.py --backend "$engine" --tiny --cases 2 \
            --seconds "$(limit 60)"
    fi
done
# Beside brax's PPO and rsl_rl, those of them that are installed.
if on_gpu jax || on_gpu torch; then
    part bench 130 "$PYTHON" -m multippo bench --works invpend-4096 pendulum-4096 --peers jax brax torch rsl-rl --rounds 1 --seconds 4 --output "$OUT/bench"
fi

{
    echo "# GPU check"
    echo
    cat "$OUT/versions.md"
    echo
    echo "| part | result | time | in short |"
    echo "|---|---|---|---|"
    cat "$OUT/parts.md"
    for engine in $ENGINES; do
        if [ -s "$OUT/throughput-$engine.txt" ]; then
            echo
            cat "$OUT/throughput-$engine.txt"
        fi
    done
    if [ -s "$OUT/bench/report.md" ]; then
        echo
        cat "$OUT/bench/report.md"
    fi
    echo
    echo "Took $((SECONDS - START)) s."
} >"$OUT/report.md"
echo
cat "$OUT/report.md"
! grep -q FAILED "$OUT/parts.md"
