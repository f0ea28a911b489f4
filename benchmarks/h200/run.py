"""Boot one engine and ask it what the arguments say. Usage: run.py OUT_FOLDER {sweep|retune|overhead|closed_loop}...

Writes OUT_FOLDER/plugin.json, sweep.csv and closed_loop.json, each as soon as its part is done.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import closed_loop
import plugin

from engine import RATES, SEQS, Engine, call


def main() -> None:
    """One engine, the parts asked for, in the order asked for."""
    out, parts = Path(sys.argv[1]), sys.argv[2:]
    engine = Engine()
    import torch
    import vllm

    if engine.scheduler._paceline is None:
        sys.exit("The plugin is not in this engine: look for 'Paceline' in the log")
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "model": "8B Llama shape, one-layer EAGLE draft, dummy weights, bfloat16",
        "acceptance_rates": RATES,
        "max_num_seqs": SEQS,
        "boot_seconds": round(engine.boot_seconds, 1),
        "scheduler": type(engine.scheduler).__mro__[1].__name__,
        "cudagraph_mode": str(engine.engine.vllm_config.compilation_config.cudagraph_mode),
        "capabilities": call("GET", "/state")["capabilities"],
    }
    print(json.dumps(environment), flush=True)
    result: dict[str, Any] = {"environment": environment}
    for part in parts:
        if part == "sweep":
            rows = plugin.sweep(engine, float(os.environ.get("SECS", "1.2")))
            result["cost_error_pct_max"] = max(abs(row["cost_error_pct"]) for row in rows)
            result["acceptance_error_points_max"] = max(row["acceptance_error_points"] for row in rows)
            result["steps_off_full_graph"] = sum(
                n for row in rows for mode, n in row["graph_modes"].items() if "FULL" not in mode
            )
            with (out / "sweep.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        elif part == "retune":
            result.update(plugin.retune(engine))
        elif part == "overhead":
            result["overhead_pct"] = plugin.overhead(engine, float(os.environ.get("OVERHEAD_SECS", "1.5")), 12)
        elif part == "closed_loop":
            measured = {"environment": environment, **closed_loop.run(engine)}
            (out / "closed_loop.json").write_text(json.dumps(measured, indent=1))
        else:
            sys.exit(f"Unknown part {part!r}: sweep, retune, overhead or closed_loop")
        (out / "plugin.json").write_text(json.dumps(result, indent=1))
        print(f"{part} done", flush=True)


main()
