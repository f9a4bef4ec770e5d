"""The values of ``result.json``."""

from dataclasses import asdict

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.provenance import versions
from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.runs.session import Session


def result_of(plan: RunPlan, session: Session, resume: Resume) -> dict:
    """Return the values of ``result.json`` from plan, stream and progress."""
    progress, stream = resume.progress, session.stream
    benchmark = stream.benchmark
    return {
        "benchmark": plan.benchmark,
        "protocol": plan.protocol,
        "strategy": plan.strategy,
        "strategy_settings": plan.method,
        "plan_sha256": plan.sha256,
        "family": plan.family,
        "preset": plan.preset,
        "learning_rate": session.plan.learning_rate,
        "learning_rate_trials": [asdict(trial) for trial in progress.trials],
        "tuning_seconds": progress.tuning_seconds,
        "run": plan.run,
        "diverged_in_experience": progress.diverged,
        "final_accuracy": progress.accuracy_after[-1],
        "accuracy_after": progress.accuracy_after,
        "final_accuracy_per_experience": progress.matrix[-1],
        "classes_order": [benchmark.class_names[label] for label in benchmark.classes_order],
        "classes_per_experience": [len(test.classes_in_this_experience) for test in benchmark.test_stream],
        "mem_size": session.plan.capacity,
        "runtime": str(session.model.runtime),
        "feature_scale": float(session.model.feature_scale),
        "bad_frames_skipped": len(stream.bad_frames),
        "bad_frames": stream.bad_frames,
        "frame_table_sha256": stream.table.content_hash(),
        "seconds": resume.seconds,
        "versions": versions(),
    }
