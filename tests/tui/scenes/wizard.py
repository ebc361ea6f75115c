"""The wizard, its questions and forms."""

from __future__ import annotations

from tests.tui.scenes import KEY, Scene, in_wizard, question_asked

SCENES = (
    Scene("hosts-none", (80, 24), act=in_wizard(1, [])),
    Scene("hosts", (80, 24), act=in_wizard(1)),
    Scene("hosts-key-unknown", (80, 24), act=question_asked(lambda prompts: prompts.accept_host_key("gpu1", *KEY))),
    Scene("hosts-password", (80, 24), act=question_asked(lambda prompts: prompts.secret("gpu1", "Password for ada: "))),
    Scene("hosts-down", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j", "j")),
    Scene("hosts-silent", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j")),
    Scene("hosts-changed", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "G", "k", "k")),
    Scene("hosts-leave", (80, 24), act=in_wizard(1, ["gpu1"], "escape")),
    Scene("hardware", (80, 24), act=in_wizard(2)),
    Scene("hardware-mixed", (80, 24), act=in_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j")),
    Scene("hardware-down", (80, 24), act=in_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j", "j", "j")),
    Scene("processes-cpu", (80, 24), act=in_wizard(3, ["gpu1", "desk"], "tab", "j")),
    Scene("host-form", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "j", "e", "j", "space", "j")),
    Scene("host-form-8", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "e")),
    Scene("job", (80, 24), act=in_wizard(4)),
    Scene(
        "job-script",
        (80, 24),
        act=in_wizard(4, ["gpu1", "gpu2"], "right", "down", *"train.py", "down", "quotation_mark"),
    ),
    Scene("check-profile", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "2")),
    Scene("check-commands", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "3")),
    Scene("check-errors", (80, 24), act=in_wizard(5, ["gpu1", "desk"])),
    Scene("check-save", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "s")),
    Scene("hardware-leased", (80, 24), act=in_wizard(2, ["gpu3"])),
    Scene("check-leased", (80, 24), act=in_wizard(5, ["gpu3"])),
    Scene("check-queued", (80, 24), act=in_wizard(5, ["gpu3"], "w")),
)
