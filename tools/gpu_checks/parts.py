"""The parts, in their order, and the steps of each."""

from gpu_checks import parity, runs, speed
from gpu_checks.steps import Step

LISTING_SECONDS = 60
# Part: the title of its lists of steps, and the function that makes each list.
PARTS = {
    "headline": {"headline": lambda machine, small: speed.headline_steps(small)},
    "parity": {
        "checks": parity.check_steps,
        "models": parity.verify_steps,
        "runs": lambda machine, small: runs.run_steps(small),
        "checks of real size": parity.real_steps,
        "compute-sanitizer": parity.sanitizer_steps,
    },
    "layouts": {"layouts": parity.layout_steps},
    "speed": {"speed": lambda machine, small: speed.speed_steps(small)},
}


def refused(part, what, error):
    """A placeholder for steps that cannot be listed, which gives the reason."""

    def run(machine):
        raise error

    return Step(part, f"list of {what}", "megatron selftest --list", run)


def steps_of(part, machine, small):
    steps = []
    for what, make in PARTS[part].items():
        machine.begin_step(LISTING_SECONDS)
        try:
            steps += make(machine, small)
        except Exception as error:  # pylint: disable=broad-exception-caught
            steps.append(refused(part, what, error))
    if small:  # a state may contain both sizes
        for step in steps:
            step.name += ", small"
            step.baseline = step.baseline and step.baseline + ", small"
    return steps
