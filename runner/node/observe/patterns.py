"""Recognises metrics in lines that training scripts print: pairs, dictionaries, progress bars.

Every expression is bounded and applied to lines of at most LONGEST characters, so that a line costs a few milliseconds
per 1,000 characters.
"""

from __future__ import annotations

import math
import re
from typing import Dict, List, Optional, Tuple, Union

Value = Union[int, float, str]
Record = Dict[str, Value]

LONGEST = 16 << 10  # verl prints a few hundred metrics in one line
"""Characters of the longest line that is parsed; longer lines are ignored."""

HINTS = (
    b"loss", b"step", b"epoch", b"iter", b"it/s", b"s/it", b"batch", b"acc@1", b"accuracy", b"samples/s", b"val:",
    b"update", b" : cost ", b"validati", b"evaluati", b"\xe2\x94\x81",
)  # fmt: skip
"""Lower-case bytes; every metric line has at least one."""

# 2,31 is not accepted: a comma groups thousands or ends a value. Nor are 1.234,5 and 10 000: parts would match.
_NUMBER = (
    r"(?![-+]?\d{1,3}(?:(?:\.\d{3}){1,5},\d{1,20}(?![\d.])|(?:[ '’]\d{3}){1,5}(?![\w./%|:'’-])))"
    r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)(?:\.\d{1,20})?|\d{1,20}(?!,\d)(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b"
)
_WORD = r"[\w./()%-]{0,40}"
# 2.5 → 2.3 is two values, and 2.31 × 10 to some power another one.
_WHOLE = r"(?!\s?(?:-{1,2}>|=>|→|\u279c|\u27f6)\s?[-+\d.]|\s?[×x·]\s?10)"
# 0:12:34 is a time, 8x a size: only these units are known. M is a million; m is minutes, which are not accepted.
_END = rf"(?!\.?\d|[:-]\d){_WHOLE}"
_UNIT = r"\s?((?-i:[kKM])(?![A-Za-z])|ms(?:ecs?)?\b|milliseconds?\b|s\b|%)?(?![A-Za-z])"
# 3 hours, 2 days, 1:00:00 and 5 min are not numbers; 90 s is one.
_NO_TIME = (
    r"(?!\s?(?:(?-i:[wdhm])|wks?|weeks?|days?|hrs?|hours?|mins?|minutes?|[u\u00b5\u03bcn]s(?:ecs?)?|(?:micro|nano)seconds?"
    r"|tage?|stunden?|minuten?)\b(?!\s?[:=(]))"
)
# name: number, name = number, name: [number/total]; a name is up to five words.
_PAIR = re.compile(
    rf"(?<![\w./(-])(?<!/ )([A-Za-z]{_WORD}(?: [A-Za-z(]{_WORD}){{0,4}})\s{{0,40}}[:=]\s{{0,40}}\[{{0,2}}\s{{0,12}}"
    rf"({_NUMBER}){_END}{_NO_TIME}"
    rf"(?:\s{{0,12}}/\s{{0,12}}(\d[\d,]{{0,15}}))?{_UNIT}",
    re.IGNORECASE,
)
# By Marian: Ep. 1 : Up. 1000 : Sen. 12,345 : Cost 4.51 * 123,456 @ 4,321 after 1,234,567
_MARIAN = re.compile(rf"\] Ep\. (\d{{1,9}}) : Up\. (\d{{1,12}}) : Sen\. [\d,]{{1,20}} : Cost ({_NUMBER})(?![\w.])")
# tflearn counts examples below its step: | Adam | epoch: 001 | loss: 0.53 - acc: 0.81 -- iter: 0640/5000
_EXAMPLES = re.compile(r" -- iter: \d{1,12}/\d{1,12}\s{0,4}$")
# The same without a separator, for unambiguous names: Step 100, Epoch [1/10], iter 7 loss 2.3.
_SPACED = re.compile(
    rf"(?<![\w./-])(global step|step|iteration|iter|itr|it(?=\s{{1,4}}\d{{1,12}}\s?[:,|/])|update"
    rf"|epoch|lr|norm|acc|accuracy|ms/batch)(?:\s{{1,12}}[#\[]?|[#\[]|\s?\((?=\d{{1,12}}/))\s{{0,12}}({_NUMBER})"
    rf"(?:\s{{0,12}}/\s{{0,12}}(\d[\d,]{{0,15}}))?(?![\w.])(?:\s?(ms|s|secs?|seconds|%)(?!\w))?",
    re.IGNORECASE,
)
# A loss without a separator, with the words before it: ctc loss 0.4 is a part, batch avg loss 0.6 the whole.
_SPACED_LOSS = re.compile(
    rf"(?<![\w./-])((?:[A-Za-z][\w()-]{{0,20}} ){{0,3}}(?:[a-z]{{1,12}}_)?)loss(?: is)?\s{{1,12}}({_NUMBER})"
    rf"(?!\w|\.\S)(?!\s?[:=]){_WHOLE}",
    re.IGNORECASE,
)
_DECIMAL_BEHIND = re.compile(r" \d{1,20}\.\d")
# Words before step, lr or accuracy that change the meaning: warmup step 100, param norm 9, val acc 0.8.
_OF_ANOTHER = re.compile(
    r"(?<!\w)(?:best|max|maximum|min|minimum|total|warm-?up|base|initial|target|skipped|micro|inner|accum(?:ulation)?"
    r"|params?|parameters?|weights?|layer|embedding|activation|ema|prev|previous|per|ppo|num)[ _]$",
    re.IGNORECASE,
)
_OF_NO_TRAINING = re.compile(r"(?<!\w)(?:val|valid|validation|eval|dev|test)[ _]$", re.IGNORECASE)
# Best val loss: 0.3 at epoch 5; Loading the best model, of step 80 (loss 0.3)
_OF_THE_BEST = re.compile(
    r"(?:(?!loss|\b(?:step|epoch|iter)).){0,120}(?<![\w'\"])"
    r"(?:best|lowest|minimum|averaged stats|(?<!data )(?:load|restor|resum)(?:ed|ing)(?! time|\s?[\d.]))\b"
    r"(?!-|=|\s?:\s?[\d.])",
    re.IGNORECASE,
)
# Other phases that have steps: Inference step 10 loss 0.3, [Predict] batch 3 loss 0.2, Sanity check: loss 2.3
_OF_ANOTHER_PHASE = re.compile(
    r"(?:(?!loss).){0,120}(?<![\w./=-])(?:infer(?:ence|ring)?|predict(?:ion|ing)?|generat(?:e|ing|ion)|benchmark(?:ing)?"
    r"|calibrat(?:e|ion|ing)|sanity(?:[ -]check(?:ing)?)?|profil(?:e|ing)|dry[ -]run|smoke[ -]test)"
    r"(?:[\])|:,]|\s[|:-])?\s{1,4}\[?(?:step|epoch|iter|iteration|batch|loss:|loss=)(?![_/\w])",
    re.IGNORECASE,
)
_OF_THE_WHOLE = frozenset([
    "batch", "avg", "average", "mean", "running", "current", "smoothed", "total", "tot", "overall", "train", "training",
    "step", "epoch", "info", "the", "iter", "global", "and", "final", "last", "with", "has", "reduced", "lm",
    "minibatch", "mini", "s", "ms", "seconds",
])  # fmt: skip
"""Words before a loss that do not change its meaning."""
_OF_VALIDATION = frozenset(
    ["val", "valid", "validation", "eval", "evaluation", "dev", "cv", "heldout", "held-out", "holdout"]
)
_OF_A_MEAN = frozenset(["avg", "average", "mean", "epoch", "total"])
# The step in brackets after its epoch: Epoch: [0][ 10/200]; by timm Train: 0 [  50/195 ( 26%)]; by mmengine
# Epoch(train)  [1][  50/7330]; by Swin Train: [0/300][10/1251]; by DCGAN [0/25][100/1583]; by OpenPCDet
# Train:    1/3 ( 33%) [  49/323 ( 15%)].
_BRACKETS = re.compile(
    r"(?:\bepoch(?:\(train\)\s{0,4})?:?\s?\[(\d{1,9})(?:/\d{1,9})?\]"
    r"|\btrain: {1,6}(\d{1,9})(?:/\d{1,9} \([ \d]{1,4}%\))?"
    r"|(?:\btrain: |^)\[(\d{1,9})/\d{1,9}\]):?\s{0,4}"
    r"\[\s{0,12}(?:batch\s)?\s{0,12}(\d{1,12})\s?/\s{0,12}(\d{1,12})(?:\]| \()",
    re.IGNORECASE,
)
# By ESPnet 1epoch:train:1-500batch: and by WeNet TRAIN Batch 0/100 loss
_EPOCH_AND_BATCH = re.compile(
    r"(?:\b(\d{1,6})epoch:train:\d{1,9}-|\bTRAIN (?:\| steps/sec [\d.]{1,12}\| ?)?Batch (\d{1,6})/)"
    r"(\d{1,9})(?:batch:| loss)"
)
# The epoch and its batch, as in PyTorch's tutorials: [1,  2000] loss: 2.182
_EPOCH_COMMA_BATCH = re.compile(
    r"(?:^|[]|:-]\s{1,4})\[(\d{1,6}),\s{1,12}(\d{1,9})\]:?\s{1,4}(?:\w{1,20}[ _])?loss\b", re.IGNORECASE
)
# ESPnet's end of an epoch: 1epoch results: [train] iter_time=0.1, loss=99.2, [valid] loss=60.1
_EPOCH_RESULTS = re.compile(r"\b(\d{1,6})epoch results: .{0,1500}?(?:\[valid\]|$)")
# The step of an epoch after its number: Epoch 2: 50/50 loss 1.5, epoch 001:    100 / 2000 loss=5.1,
# Epoch 1 [10/100] Loss 0.5, Epoch:[1/2](100/56351) loss:3.2, fairseq's first form epoch 010  2000 / 8223 loss=1.27
_IN_EPOCH = re.compile(
    r"\bepoch(?:\s?\d{1,9}(?:/\d{1,9})?\s?[:,|-]\s{1,12}|\s\d{1,9}\s{2,8}|:?\s{1,4}\d{1,9}(?:/\d{1,9})?:?\s{1,4}\[\s{0,8}"
    r"|:?\s?\[\d{1,9}(?:/\d{1,9})?\]\s?\()"
    r"(\d{1,12})\s?/\s{0,8}(\d{1,12})(?=[\])]?[\s,|:\[(-]{1,12}(?:\w{1,20}[ _])?loss)",
    re.IGNORECASE,
)
# Epoch 1, batch 50; Batch 10/938; batch: 3; Batch(100/1879) done.
_BATCH = re.compile(
    r"(?<![\w./-])batch(?:\s|:\s?|\s?=\s?|\((?=\d{1,12}/))\[?\s{0,4}(\d{1,12})(?:\s?/\s{0,4}(\d{1,12}))?(?![\w.])",
    re.IGNORECASE,
)
# mmengine without epochs: Iter(train) [   50/160000]; DINOv2: Training  [   10/125000]
_ITERATIONS = re.compile(
    r"\b(?:iter\(train\)|training)\s{0,4}\[\s{0,12}(\d{1,12})\s?/\s{0,12}(\d{1,12})\]", re.IGNORECASE
)
# The step after the metric's name: Loss at step 5: 2.4, Training loss (for one batch) at step 0: 68.79; by Megatron
# validation loss at iteration 10 | lm loss value: 5.1E+00
_LOSS_AT = re.compile(
    rf"(?<![\w./-])((?:[a-z][\w()]{{0,20}} ){{0,3}})loss(?: \([a-z ]{{1,40}}\))?"
    rf" at (?:step|iteration|iter|batch) (\d{{1,12}})"
    rf"(?:\s?[:=]|(?: on [a-z ]{{1,20}})? \| lm loss value:)\s{{0,4}}({_NUMBER})",
    re.IGNORECASE,
)
# The step before its unit: 200/ 2983 batches.
_BATCHES = re.compile(r"(?<![\w./])(\d{1,12})\s?/\s{0,12}(\d{1,12}) batches\b", re.IGNORECASE)
# Counts the whole run, whatever else the line counts.
_GLOBAL_STEP = re.compile(
    rf"(?<![\w./-])(?:train(?:er)?/)?(?:global[_ ]step|num_updates)['\"]?\s?[:=]?\s{{0,12}}['\"]?({_NUMBER})"
    r"(?:\s?/\s?(\d[\d,]{0,15}))?(?![\w.]|,\d)",
    re.IGNORECASE,
)
_OPTIMIZER_STEP = re.compile(
    rf"(?<![\w./-])(?:global )?step:?\s{{1,12}}({_NUMBER})(?:\s{{0,12}}/\s{{0,12}}(\d[\d,]{{0,15}}))?(?![\w.])"
    r"(?!\s?(?:ms|s|secs?|seconds|%)(?!\w))",
    re.IGNORECASE,
)
# The unit identifies the metric: 233.36 ms, 35149 tok/s, time 192.41ms; seconds per batch as torchvision prints.
_MEASURED = re.compile(
    r"(?:^|[|(] ?|, |(?<!\d),|(?:(?:^|[|,;:(\]] {0,2}|\b(?:iter|step|batch) )time|\bthroughput|\bspeed):? {1,4})"
    r"(\d{1,3}(?:,\d{3}){1,4}(?:\.\d{0,12})?|\d{1,12}(?:\.\d{0,12})?) ?"
    r"(ms|tok/s|tok/sec|tokens/s|tokens/sec|samples/s|samples/sec|img/s|images/s|images/sec|steps/s|it/s)(?![\w/])",
    re.IGNORECASE,
)
# timm: seconds of a step, and samples per second: Time: 0.123s,  520.00/s
_STEP_AND_RATE = re.compile(r"\bTime: {1,4}(\d{1,12}\.\d{1,12})s, {1,8}(\d{1,12}\.\d{1,12})/s\b")
_METER = re.compile(r"\bTime\s{1,8}(\d{1,12}\.\d{1,12}) \(\s{0,8}\d")
# The loss of a batch, with the mean of all batches so far in brackets: Loss 6.9412e+00 (6.9400e+00).
_DECIMAL = rf"(?=[-+]?\d{{0,20}}\.|[-+]?(?:nan|inf)\b){_NUMBER}"
# By BigDL the sum of all batches: Loss is (Loss: 134.7, count: 128, Average Loss: 1.05).
_MEAN_LOSS = re.compile(
    rf"\bloss:?\s{{1,8}}(?:(?:{_DECIMAL}) \(\s{{0,8}}({_DECIMAL})\)"
    rf"|(?:{_NUMBER}), count: \d{{1,12}}, average loss: ({_NUMBER}))",
    re.IGNORECASE,
)
# A bar that rounds its counter (unit_scale=True), so that it does not count steps:
# 10%|# | 1.20k/12.0k [00:10<01:30, 120it/s]
_ROUNDED_BAR = re.compile(
    r"\d{1,3}%\|[^|]{0,200}\|\s{0,4}\d[\d.]{0,8}[kMG]?/\d[\d.]{0,8}[kMG] \[[\d:]{4,12}<[\d:?]{1,12},"
)
# Top-1 accuracy of a batch, with that of all so far in brackets: Acc@1   1.56 (  0.37), acc1: 12.5 (11)
# Some scripts print a fraction, most per cent: it keeps its number, and a name that nothing else has.
_FIRST_GUESS = re.compile(rf"\bacc@?1:?\s{{1,8}}({_NUMBER})(?:\s{{1,4}}\(\s{{0,8}}({_NUMBER})\))?", re.IGNORECASE)
# PyG's examples: Train: 0.5120, Val: 0.5022, Test: 0.4990
_SPLITS = re.compile(
    rf"\btrain: ?({_NUMBER}), ?val(?:id|idation)?: ?({_NUMBER})(?:, ?test: ?({_NUMBER}))?(?![\w.])", re.IGNORECASE
)
# The end of Hugging Face's examples:   train_loss               =     5.4983
_RUN_TABLE = re.compile(r"\s{1,8}train_loss\s{2,60}=\s")
# The result of a validation, as ImageNet scripts print it at the end:  *   Acc@1 0.125 Acc@5 0.484, perhaps after a
# logger's prefix (Swin) and with the loss behind it (DeiT).
_RESULT = re.compile(
    rf"(?:.{{0,120}}\bINFO)?\s{{0,4}}\*\s{{1,8}}Acc@1:?\s{{1,8}}({_NUMBER})"
    rf"(?:\s{{1,8}}Acc@5:?\s{{1,8}}(?:{_NUMBER})\s{{1,8}}loss:?\s{{1,8}}({_NUMBER}))?",
    re.IGNORECASE,
)
_MINUS = re.compile(r"\u2212(?=[\d.])")
# NaN and infinity as printed by C on Windows: 1.#IND, 1.#INF
_NOT_FINITE = re.compile(r"(?<![\w.])([-+]?)1\.#(?:(INF)|IND|[QS]NAN)0{0,8}(?![\w.])")
# Python's 1_000 for 1,000
_UNDERSCORES = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3}){1,4}(?![\w.])")
# step 1.2k/10k, iter: 900/10k, "step": "10k"
_ABBREVIATED = re.compile(
    r"\b((?:(?:global[_ ])?step|iter|iteration)['\"]?(?:\s?[:=]|\s?\[|\s)\s{0,4}['\"]?\[?\s{0,4})"
    r"(\d{1,12}(?:\.\d{1,3})?)((?-i:[kKM])?)(?:(\s?/\s?)(\d{1,12}(?:\.\d{1,3})?)((?-i:[kKM])?))?(?![\w.]|,\d)",
    re.IGNORECASE,
)
# A decimal comma after a zero, where it cannot group thousands: loss: 0,53
_DECIMAL_COMMA = re.compile(
    r"(loss['\"]?(?:\s{0,4}[:=]\s{0,4}|\s)['\"]?0),(\d{1,20})(?![\d.]|,\d|[eE][-+]?\d)", re.IGNORECASE
)
# The first of several values in brackets: loss=[2.5, 2.3]
_OF_SEVERAL = re.compile(r"\s?,\s?[-+\d.]")
# By clu's writer, after absl's prefix: [250] accuracy=0.75, loss=2.3
_AT_STEP = re.compile(r"[IWEF]\d{4} .{0,80}\.py:\d{1,6}\] \[(\d{1,12})\] \w{1,40}=")
# Objects inside an object, by their content: {'train': {'loss': 2.3}, 'val': {'loss': 2.9}}
_GROUP = re.compile(
    r"""['"](train|training|val|valid|validation|eval|evaluation|test|best|loss|losses)['"]\s?:\s?"""
    r"""\{([^{}]{0,1000})\}""",
    re.IGNORECASE,
)
_KEY = re.compile(r"""(['"])([\w./ -]{1,60})(?=['"]\s{0,4}:)""")
# A line of a validation: its loss is not the training loss, its counter not a step. A logger may write a time, a level
# or a rank before it; a loss before it is the training loss.
_VALIDATION = re.compile(
    r"\W{0,4}(?:test|val|valid|validation|eval|evaluation)"
    r"(?: set| results?| metrics| (?:epoch|step|iter|batch)\b[^:]{0,20})?\s{0,8}[:|]"
    r"|\s{1,4}accuracy: \d{1,3}\.\d%, avg loss:"  # PyTorch's first tutorial, below its Test Error:
    r"|ppl: [\d.]{1,30}, loss: [\d.]{1,30}\s{0,4}$"  # DeepSpeed-Chat, below its Evaluating perplexity
    r"|(?:(?!loss).){0,120}(?<![\w./-])"
    r"(?:(?:val|valid|validate|validation|validating|eval|evaluate|evaluation|evaluating|test set|dev set"
    r"|test results?|test metrics)"
    r"(?: results?| metrics)?(?:\s{0,8}[]|)]|\s(?:at |after )?(?:epoch|step|iter|batch(?! size))\b| \(step"
    r"|\s\[?\s{0,6}\d{1,12}\s?/\s{0,6}\d"
    r"|\s?:(?!\s?(?:\d|\.\d|n/a|none|false|true)|[\w-]{1,40}:)|\.\.\.|\s-\s|\s[-=*#]{2})"
    r"|(?:val|valid|validation|eval|evaluation)_(?:step|iter|iteration|batch)\b"
    r"|(?:evaluat|validat)ing: \d|dev(?: set)? ?: loss"
    r"|[(\[]test[)\]]|test(?: \(\w{1,20}\))?: \[|\btest (?:epoch|step|iter|batch(?! size))\b"
    r"|cv (?:\| .{0,30})?batch|valid on '"
    r"|(?:val|valid|validation|eval|evaluation|test|dev) loss at"
    r"|testing(?:\s?:(?!\s?\d)| (?:epoch|step|iter|batch)\b)"
    r"|saving dict for global step"  # TensorFlow's estimators, at the end of an evaluation
    r"|(?:epoch\(train\) \[\d{1,9}\]|iter\(train\) )\[\d{1,9}\])"  # mmcv's validation inside its training
    r"|.{0,120}\bloss is \(loss:"  # BigDL
    # The function that logs (loguru), the event of structlog, and a pair that marks a validation.
    r"|.{0,120}(?:\| [\w.<>]{1,80}:(?!\w{0,40}train)(?:\w{0,30}_)?"
    r"(?:val|validate|validation|eval|evaluate|evaluation|evaluator)(?:_\w{1,30})?:\d{1,6} - "
    r"|\[(?:debug|info|warning) {0,8}\] {1,4}(?:val(?!ue)|eval)[a-z]{0,9}\b(?!=)"
    r"|\b(?:event|msg|message|phase|split|mode|stage|subset)=['\"]?"
    r"(?:val|valid|validation|eval|evaluation|evaluate|test)\b)",
    re.IGNORECASE,
)
# The same as an object's top-level field: {"event": "eval", "metrics": {"loss": 1.5}}, {"eval": {"loss": 1.5}}.
# As torchvision's tutorials print a phase: val Loss: 0.2012 Acc: 0.9412
_VALIDATION_LOSS = re.compile(r"\W{0,4}(?:val|valid|validation|eval|test|dev) loss\b[^a-z]{1,40}acc", re.IGNORECASE)
_VALIDATES = re.compile(
    r"""[^{]{0,200}\{[^{}]{0,400}['"](?:(?:event|phase|split|mode|stage|subset)['"]\s{0,4}:\s{0,4}['"]test|"""
    r"""(?:event|phase|split|mode|stage|subset|type|kind|msg|message)['"]\s{0,4}:\s{0,4}"""
    r"""['"](?:val|valid|validation|eval|evaluation|evaluate))"""
    r"""(?:_(?:end|epoch|epoch_end|step|metrics|results?)|\b[^'"{}]{0,100})?['"]"""
    r"""|[^{]{0,200}\{(?:['"](?:step|global_step|epoch)['"]:\s?\d[^,]{0,20},\s?){0,3}"""
    r"""['"](?:val|valid|validation|eval|evaluation|test)['"]:\s?\{""",
    re.IGNORECASE,
)
# An evaluation as accelerate's examples and many others print it: epoch 0: {'accuracy': 0.84, 'f1': 0.89}
_EVALUATED = re.compile(r"\W{0,4}epoch (\d{1,6}):\s{1,4}\{['\"]", re.IGNORECASE)
# A number as Python shows it inside a tensor or an array: tensor(2.5, device='cuda:0'), np.float64(2.5)
_WRAPPED = re.compile(
    r"\b(?:tensor|(?:Device)?Array|(?:np|numpy|jnp|mx)\.[a-z]{3,7}\d{0,3})"
    r"\(\[?([-+\d.e]{1,25}|[-+]?nan|[-+]?inf)\]?(?:, (?=[a-z_])[^()]{0,120})?\)",
    re.IGNORECASE,
)
# Pairs in brackets: step 10 (loss=2.5, acc=0.3)
_OPENED = re.compile(r"(?<!\w)\((?=[A-Za-z]\w{0,30}\s?[:=]\s?[-+\d.])")
# The settings of a run: Namespace(lr=0.1, epochs=10), config: {'loss': 1.0, 'lr': 0.1}
_SETTINGS = re.compile(
    r".{0,120}\b(?:Namespace|\w{0,40}(?:Args|Arguments|Config))\(\w"
    r"|[^{]{0,60}\b(?i:config(?:uration)?|cfg|args|arguments|h(?:yper-?)?param(?:eter)?s|settings|options|\w{0,20}weights)"
    r"['\"]?\s?[:=]\s?\{"
)
# A single comma may be a decimal point: a loss of 2,345.
_ONE_COMMA = re.compile(r"[-+]?\d{1,3},\d{3}")
_POINT_FOR_COMMA = re.compile(r"\d{1,3}\.\d{3}")
# step 10: {'loss': 0.5}
_STEP_OF_OBJECT = re.compile(
    r"[^{]{0,100}\b(?:step|iter|iteration):?\s{1,8}(\d{1,12})\b[^{]{0,80}\{['\"]"
    r"|.{0,400}['\"](?:message|msg|event)['\"]\s?:\s?['\"][^'\"]{0,100}?\b(?:step|iter|iteration)[:=]? ?(\d{1,12})\b",
    re.IGNORECASE,
)
# Source locations as loggers print them: train.py:42, __main__:train:42; trainer:42 after a time or a level.
_SOURCE = re.compile(r"\.(?:py|pyx|c|cc|cpp|cu|h|rs)$", re.IGNORECASE)
_LOGGED = re.compile(r"\d:\d\d|\b(?:DEBUG|INFO|WARNING|ERROR)\b")
# 'name': number, as Python prints a dictionary and JSON an object; Trainer 5 quotes its numbers. Dates, times and
# versions are not numbers.
_QUOTED = re.compile(
    rf"""['"]([\w./ -]{{1,60}})['"]\s{{0,4}}:\s{{0,4}}['"]?({_NUMBER}){_NO_TIME}(?![\w.:-]|/\d{{1,4}}/)""",
    re.IGNORECASE,
)
_IN_QUOTES = re.compile(r"(['\"]).{0,200}?\1")
_LOSS_OF_STEPS = re.compile(r"['\"]loss['\"]")
_NAMES = {
    "loss": "loss", "train_loss": "loss", "training_loss": "loss", "total_loss": "loss",
    "loss_train": "loss", "train_loss_step": "loss", "reduced_train_loss": "loss", "loss_train_total": "loss",
    "losses_total_loss": "loss", "train_ce_loss": "loss", "train_crossentropyloss": "loss",
    "avr_loss": "loss", "loss_step": "loss", "loss_total": "loss",
    "val_loss": "val_loss", "eval_loss": "val_loss", "valid_loss": "val_loss", "validation_loss": "val_loss",
    "loss_val": "val_loss", "loss_valid": "val_loss", "loss_validation": "val_loss", "loss_eval": "val_loss",
    "val_loss_epoch": "val_loss", "valid_loss_epoch": "val_loss", "validation_loss_epoch": "val_loss",
    "eval_loss_epoch": "val_loss", "dev_loss": "val_loss", "cv_loss": "val_loss",
    "lm_loss_value": "val_loss",
    "lr": "lr", "learning_rate": "lr",
    "grad_norm": "grad_norm", "gradient_norm": "grad_norm", "gnorm": "grad_norm", "norm": "grad_norm",
    "step": "step", "global_step": "step", "iter": "step", "iteration": "step", "num_updates": "step", "update": "step",
    "nupdates": "step", "it": "step", "itr": "step", "completed_step": "step",
    "n_updates": "step", "train_num_updates": "step", "valid_num_updates": "step", "trainer_global_step": "step",
    "train_global_step": "step", "global_step_max_steps": "step", "current_steps": "step",
    "train/step": "step",
    "epoch": "epoch", "train_epoch": "epoch",
    "step_time": "step_time", "time_per_step": "step_time", "iter_time": "step_time", "dt": "step_time",
    "iter_time_(s)": "step_time", "ms/batch": "step_time", "batch_time": "step_time",
    "elapsed_time_per_iteration": "step_time", "train_step_timing_in_s": "step_time",
    "steps/s": "steps_per_s", "steps/sec": "steps_per_s", "it/s": "steps_per_s", "iter/s": "steps_per_s",
    "steps_per_sec": "steps_per_s", "steps_per_second": "steps_per_s", "iterations/s": "steps_per_s",
    "samples/s": "samples_per_s", "samples/sec": "samples_per_s", "samples_per_sec": "samples_per_s",
    "samples_per_second": "samples_per_s", "img/s": "samples_per_s", "images/s": "samples_per_s",
    "images/sec": "samples_per_s", "examples/s": "samples_per_s",
    "tokens/s": "tokens_per_s", "tokens/sec": "tokens_per_s", "tok/s": "tokens_per_s", "tok/sec": "tokens_per_s",
    "tokens_per_sec": "tokens_per_s", "tokens_per_second": "tokens_per_s", "tps": "tokens_per_s",
    "acc": "accuracy", "train_acc": "accuracy", "val_acc": "val_accuracy",
    "valid_accuracy": "val_accuracy", "validation_accuracy": "val_accuracy", "valid_acc": "val_accuracy",
    "validation_bpb": "val_bpb", "val_bpb": "val_bpb",
}  # fmt: skip
_KNOWN = frozenset(_NAMES.values())
# Names for the time of a line in loggers that print JSON.
_CLOCKS = frozenset([
    "t", "ts", "time", "timestamp", "unix_time", "wall_time", "epoch_time", "date", "datetime", "created", "created_at",
])  # fmt: skip
# Estimated times, in whatever units and language: remaining: 2 Tage
_LEFT = re.compile(r"(?:^|_)(?:eta|remaining|left)(?:_|$)")
# Val. Loss, in which the full stop does not end a sentence.
_SHORTENED = re.compile(r"\b(train|val|valid|eval|dev|test)\. ")
# A logger's prefix: INFO: [10/100]
_LEVELS = frozenset(["info", "debug", "warning", "error"])
# Characters before a name that are not a part of it.
_BEFORE = frozenset(["info", "debug", "warning", "train", "training", "rank", "gb", "gib", "mb", "mib"])
# Values that have decimal places.
_DECIMALS = frozenset(["lr", "grad_norm", "accuracy", "val_accuracy", "acc1", "val_acc1", "step_time"])
_TELLING = frozenset(
    ["loss", "val_loss", "val_bpb", "lr", "grad_norm", "step_time", "steps_per_s", "samples_per_s", "tokens_per_s"]
)
_RESULTS = frozenset(["loss", "val_loss", "val_acc1", "val_accuracy", "eval_accuracy", "test_accuracy"])
"""Names that only a training prints."""
_OPTIONS = frozenset(["batch_size", "weight_decay", "num_workers", "seed", "dropout", "epochs", "num_epochs"])
"""Names of settings, which a training prints with its learning rate when it begins."""
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3,
            "millisecond": 1e-3, "milliseconds": 1e-3}  # fmt: skip
_DURATIONS = frozenset(["ms", "msec", "msecs", "millisecond", "milliseconds", "s", "sec", "secs", "seconds"])


def recognise(line: str) -> Optional[Record]:
    """The metrics in a line, None if it has none."""
    if len(line) > LONGEST:
        return None
    marian = _MARIAN.search(line)
    if marian:
        return {"epoch": int(marian.group(1)), "step": int(marian.group(2)), "loss": _value(marian.group(3))}
    line = _EXAMPLES.sub("", _MINUS.sub("-", line))
    line = _NOT_FINITE.sub(lambda found: f"{found[1]}inf" if found[2] else "nan", line)
    line = _UNDERSCORES.sub(lambda found: found.group().replace("_", ""), _WRAPPED.sub(r"\1", line))
    line = _DECIMAL_COMMA.sub(r"\1.\2", _ABBREVIATED.sub(_in_full, line))
    line = _GROUP.sub(_ungrouped, line)
    line = _ROUNDED_BAR.sub(" [", line)
    result = _RESULT.match(line)
    if result:
        accuracy, loss = result.groups()
        return {"val_acc1": _value(accuracy), **({"val_loss": _value(loss)} if loss else {})}
    if _RUN_TABLE.match(line) or line.lstrip().startswith("wandb:") or _SETTINGS.match(line):
        return None  # a mean, the end of the run, or its settings
    if _OF_THE_BEST.match(line) or _OF_ANOTHER_PHASE.match(line):
        return None  # of an earlier step; or a mean, as in a validation (DETR)
    found = _whole_line(line)
    if found is None:
        return None
    if "steps" in found and "step" not in found:
        steps = found.pop("steps")
        if "epoch" in found:  # per epoch, not per run: [GPU0] Epoch 1 | Batchsize: 32 | Steps: 32
            return found
        if "loss" in found:  # DeepSpeed's pipelines: steps: 10 loss: 5.6500
            found["step"] = steps
    trained = not found.keys().isdisjoint(_RESULTS) or bool(_SPLITS.search(line) or _EVALUATED.match(line))
    steps = not found.keys().isdisjoint(("step", "epoch"))
    tells = not _TELLING.isdisjoint(found) and (steps or "accuracy" in found) and _OPTIONS.isdisjoint(found)
    part = steps and any(name.endswith("_loss") or name.startswith("loss_") for name in found)
    return found if trained or tells or part else None


def _in_full(found: "re.Match[str]") -> str:
    """A counter with k and M expanded; unchanged if it has neither."""
    name, step, unit, slash, total, unit_of_total = found.groups("")
    if not unit + unit_of_total:
        return found.group()
    return f"{name}{_whole(step, unit)}{slash}{_whole(total, unit_of_total) if total else ''}"


def _whole(number: str, unit: str) -> int:
    return round(float(number) * _FACTORS.get(unit, 1))


def _ungrouped(group: "re.Match[str]") -> str:
    """The pairs of a nested object, each with the object's kind added to its name."""
    of = group.group(1).lower()
    if of in ("loss", "losses"):
        return _KEY.sub(lambda key: f"{key.group()}_loss", group.group(2))
    if of.startswith("train"):
        return group.group(2)
    kind = of if of in ("test", "best") else "val"
    return _KEY.sub(lambda key: f"{key.group(1)}{kind}_{key.group(2)}", group.group(2))


def _whole_line(line: str) -> Optional[Record]:
    """Every value of a line under its name; None if the line is a summary."""
    found: Record = {}
    results = _EPOCH_RESULTS.search(line)
    if results:
        found = _validation(pairs(line[results.end() :]), "")
        put(found, "epoch", results.group(1))
        return found
    counted = _GLOBAL_STEP.search(line)
    if counted:
        put(found, "step", *counted.groups())
    for match in _QUOTED.finditer(line):
        put(found, *match.groups())
    above = _STEP_OF_OBJECT.match(line)
    if above and found:
        put(found, "step", above.group(1) or above.group(2))
    # Trainer's summary: its loss is the mean over the whole training. With include_num_input_tokens_seen, each line has
    # the time; it names the loss of its steps "loss".
    if "train_runtime" in found and not _LOSS_OF_STEPS.search(line):
        return None
    evaluated = _EVALUATED.match(line) if found.keys() - {"step", "steps"} else None
    if evaluated:
        put(found, "epoch", evaluated.group(1))
        return found
    if found.keys() <= {"step", "steps"}:
        _unquoted(found, line)
    elif "{" not in line:  # such as iter: 2, lr: 0.00003, 'loss': '28.8'
        _unquoted(found, re.split("['\"]", _IN_QUOTES.sub(" ; ", line), maxsplit=1)[0])
    settle_loss(found)
    if counted and not counted.group(2):
        found.pop("steps", None)
    if "validate_step" in found:  # torchtitan, whose loggers write before it
        found = {**_validation(found, line), "step": found["validate_step"]}
    elif _VALIDATION.match(line):
        found = _validation(found, line)
    elif ("loss" in found and _VALIDATES.match(line)) or ("loss" not in found and _VALIDATION_LOSS.match(line)):
        found = as_validated(found)
    return found


def first_epoch(line: str) -> Optional[int]:
    """The number of a training's first epoch, if the step of a line counts the batches of one epoch; otherwise None."""
    in_epoch = _BRACKETS.search(line)
    if in_epoch:
        head = in_epoch.group().partition("[")[0].lower()
        return 1 if head.startswith(("epoch(train)", "epoch ")) or "/" in head else 0  # mmengine, mmcv, OpenPCDet
    for counter in (_BATCHES, _IN_EPOCH):
        if counter.search(line):
            return 1
    batch = _BATCH.search(line)
    return 1 if batch and batch.group(2) else None


def _unquoted(found: Record, line: str) -> None:
    """Note every value of a line in a human-readable form."""
    line = _OPENED.sub(" ", line)
    in_epoch = _count(found, line)
    put_losses(found, line)
    for match in _SPACED.finditer(line):
        name, number, total, unit = match.groups()
        before = line[max(0, match.start() - 20) : match.start()]
        of_training = not name.lower().startswith("acc") or not _OF_NO_TRAINING.search(before)
        if of_training and not _OF_ANOTHER.search(before):
            put(found, name, number, total, "ms" if name.lower() == "ms/batch" else unit)
    for at, match in enumerate(_PAIR.finditer(line)):
        several = "[" in match.group() and bool(_OF_SEVERAL.match(line, match.end()))
        if several and canonical(match.group(1))[0].endswith("loss"):
            continue
        if not _is_source(line, match, first=not at) and not (
            in_epoch and match.start() <= in_epoch.start() < match.end()
        ):
            put(found, *match.groups())
    if "train_time" in found and _EPOCH_AND_BATCH.search(line):
        found["step_time"] = found.pop("train_time")  # ESPnet's iter_time is that of the data
    for match in () if "step" in found else _BATCH.finditer(line):
        put(found, "step", *match.groups())
    _put_splits(found, line)
    _name_loss(found)
    if "(train)" in line and "step" in found and "time" in found:
        found["step_time"] = found.pop("time")  # as mmengine names it
    for match in _MEASURED.finditer(line):
        number, unit = match.groups()
        in_ms = unit.lower() == "ms"
        put(found, "step_time" if in_ms else unit, number, None, "ms" if in_ms else None)
    guess = _FIRST_GUESS.search(line)
    if guess:
        put(found, "acc1", guess.group(1))
    rate = _STEP_AND_RATE.search(line)
    if rate:
        put(found, "step_time", rate.group(1))
        put(found, "samples_per_s", rate.group(2))
    meter = _METER.search(line)
    if meter:
        put(found, "step_time", meter.group(1))


def _put_splits(found: Record, line: str) -> None:
    splits = _SPLITS.search(line)
    if splits is None or line[: splits.start()].lower().endswith("loss "):  # litgpt: loss train: 1.2, val: 1.3
        return
    for name, share in zip(("train", "val", "test"), splits.groups()):  # noqa: B905 (Python 3.8)
        if share:
            put(found, name, share)


def put_losses(found: Record, line: str) -> None:
    """Note every loss without a separator; a partial loss keeps its name."""
    matches = list(_SPACED_LOSS.finditer(line))
    for match in matches:
        if match.group(2).isdigit() and _DECIMAL_BEHIND.match(line, match.end()):
            continue  # Tacotron 2: Train loss 10 0.512, where 10 is the step
        words = match.group(1).lower().replace("_", " ").split()
        alone = len(matches) == 1 and words[-1:] != ["held-out"]  # cross-entropy loss 0.5
        put(found, _loss_of([one for one in words if not (alone and "-" in one)]), match.group(2))


def _loss_of(words: List[str]) -> str:
    """The name of a loss with these words before it."""
    parts = [word for word in words if word not in _OF_THE_WHOLE]
    validates = bool(parts) and _OF_VALIDATION.issuperset(parts)
    return "val_loss" if validates else "_".join([*(parts[-2:] or words), "loss"])


def settle_loss(found: Record) -> None:
    """Rename a loss that is the whole one or a part of it, as in `lm_loss: 2.1, aux_loss: 0.1, loss: 2.2`."""
    for name in ("lm_loss", "step_loss", "xent"):
        if name in found and "loss" not in found:
            found["loss"] = found.pop(name)


def _name_loss(found: Record) -> None:
    """Rename the mean loss of a line without another loss to the loss; likewise for a validation."""
    settle_loss(found)
    losses = [(name, set(name.split("_")[:-1])) for name in found if name.endswith("_loss")]
    wholes = [name for name, words in losses if _OF_THE_WHOLE.issuperset(words)]
    if wholes and "loss" not in found:
        found["loss"] = found.pop(wholes[0])
    of_validation = [name for name, words in losses if set() < words - _OF_A_MEAN <= _OF_VALIDATION]
    if of_validation and "val_loss" not in found:
        found["val_loss"] = found.pop(of_validation[0])


def _count(found: Record, line: str) -> "Optional[re.Match[str]]":
    """Note the step and its total; returns the match of an epoch's counter, if the line has one."""
    in_epoch = _BRACKETS.search(line)
    if in_epoch:
        put(found, "epoch", next(filter(None, in_epoch.groups()[:3])))
        put(found, "step", *in_epoch.groups()[3:])
    by_batch = _EPOCH_AND_BATCH.search(line)
    if by_batch:
        put(found, "epoch", by_batch.group(1) or by_batch.group(2))
        put(found, "step", by_batch.group(3))
    pair = _EPOCH_COMMA_BATCH.search(line)
    if pair:
        put(found, "epoch", pair.group(1))
        put(found, "step", pair.group(2))
    for counter in (_ITERATIONS, _BATCHES, _IN_EPOCH):
        counted = counter.search(line)
        if counted:
            put(found, "step", *counted.groups())
    marked = _AT_STEP.match(line)
    if marked:
        put(found, "step", marked.group(1))
    at = _LOSS_AT.search(line)
    if at:
        put(found, "step", at.group(2))
        put(found, _loss_of(at.group(1).lower().split()), at.group(3))
    for optimizer in _OPTIMIZER_STEP.finditer(line):
        # Where both are shown, iterations are parts of a step (gradient accumulation).
        if not _OF_ANOTHER.search(line[max(0, optimizer.start() - 20) : optimizer.start()]):
            put(found, "step", *optimizer.groups())
    return in_epoch


def _is_source(line: str, match: "re.Match[str]", *, first: bool) -> bool:
    """Whether a pair is a source location printed by a logger; only the first pair of a line can be."""
    name = match.group(1)
    if _SOURCE.search(name):
        return True
    before, tight = (
        line[: match.start()],
        match.group(0).rstrip() == f"{name}:{match.group(2)}" and match.group(2).isdigit(),
    )
    logged = first and tight and bool(_LOGGED.search(before))
    return (logged or before.endswith(":")) and canonical(name)[0] not in _KNOWN


def as_validated(found: Record) -> Record:
    """The record with the names of a validation: its loss and accuracy are not those of training."""
    names = {"loss": "val_loss", "accuracy": "val_accuracy"}
    renamed = {names[name]: value for name, value in found.items() if name in names}
    return {**renamed, **{name: value for name, value in found.items() if name not in names}}


def _validation(found: Record, line: str) -> Record:
    """The metrics of a validation line: its loss as the validation loss, and accuracy; the mean if it has both."""
    mean = _MEAN_LOSS.search(line)
    loss = found.get("val_loss", found.get("loss", found.get("average_loss")))
    loss = _value(mean.group(1) or mean.group(2)) if mean else loss
    rest = {name: value for name, value in as_validated(found).items() if name in ("epoch", "val_accuracy")}
    guess = _FIRST_GUESS.search(line)
    first: Record = {"val_acc1": _value(guess.group(2) or guess.group(1))} if guess else {}
    return first if loss is None else {"val_loss": loss, **rest, **first}


def pairs(text: str) -> Record:
    """Every `name: number` and `name=number` in a text."""
    found: Record = {}
    for match in _PAIR.finditer(_OPENED.sub(" ", text)):
        put(found, *match.groups())
    return found


def by_pattern(match: "re.Match[str]") -> Record:
    """The named groups of a profile's own expression that are numbers."""
    found: Record = {}
    for name, text in match.groupdict().items():
        try:
            found[name] = _value(text)
        except (AttributeError, ValueError):
            continue
    return found


def put(found: Record, name: str, number: str, total: Optional[str] = None, unit: Optional[str] = None) -> None:
    """Note one value under its canonical name; the first in a line takes precedence."""
    name, unit_of_name = canonical(name)
    if _LEFT.search(name) or name in _LEVELS:
        return  # "1 day, 2:33:44" would be a 1
    if _ONE_COMMA.fullmatch(number) and (name.endswith("loss") or name in _DECIMALS):
        return
    if name == "step" and unit in _DURATIONS:
        name = "step_time"
    if name in ("step", "epoch") and (number.startswith("-") or unit == "%" or unit in _DURATIONS):
        return
    if name == "step" and _POINT_FOR_COMMA.fullmatch(number):
        return
    value = _value(number)
    # Seconds since 1970, in 2001: a larger number under such a name is a time of day, not a duration
    if name in _CLOCKS and not isinstance(value, str) and value >= 1e9:
        return
    if name == "step" and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3
    if name in ("step", "steps") and not isinstance(value, int):
        return
    factor = _FACTORS.get(unit or unit_of_name)
    if factor is not None and not isinstance(value, str):
        value = round(value * factor, 9)
    of = int(total.replace(",", "")) if total else 0
    if of and name == "accuracy" and not isinstance(value, str):
        value = value / of  # correct ones of all
    found.setdefault(name, value)
    if of and name == "step":
        found.setdefault("steps", of)


def canonical(name: str) -> Tuple[str, str]:
    """The canonical name, or else its words joined by underscores; and the unit that it ends with."""
    name = _SHORTENED.sub(r"\1 ", name.lower())
    name, in_ms, _ = name.rpartition(". ")[2].partition("(ms)")
    words = name.replace("-", "_").split()
    while len(words) > 1 and "_".join(words) not in _NAMES and words[0] in _BEFORE:
        words = words[1:]
    joined = "_".join(words)
    plain = re.sub(r"[^a-z0-9_]+", "_", joined).strip("_")
    # loss (train) as well
    known = _NAMES.get(joined) or _NAMES.get(joined.replace("/", "_")) or _NAMES.get(plain.replace("__", "_"))
    return known or plain, "ms" if in_ms else ""


def _value(text: str) -> Value:
    text = text.replace(",", "").lower()
    number = float(text)
    if not math.isfinite(number):
        return str(number)
    # A counter has at most 64 bits; larger numbers become floats.
    return int(text) if text.lstrip("+-").isdigit() and abs(number) < 1 << 63 else number
