"""Sparse models of Transformers in Trainer, PEFT and pipelines."""

import os

import peft
import pytest
import torch
import torch.distributed as dist
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.distributed import DistributedConfig

from headwise.hf import AlphaCallback, desparsify, from_pretrained, heads, record, sparsify
from headwise.nn import HeadAlpha
from transformers_models import inputs, make, output, sparse

pytestmark = pytest.mark.slow
KINDS = {"bert": "AutoModelForMaskedLM", "llama": "AutoModelForCausalLM"}


class Texts(torch.utils.data.Dataset):
    """Random texts of 12 tokens with their labels."""

    def __init__(self, n):
        self.ids = torch.randint(3, 97, (n, 12), generator=torch.Generator().manual_seed(7))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def trainer(model, folder, **options):
    callbacks = options.pop("callbacks", None)
    settings = {
        "per_device_train_batch_size": 4, "max_steps": 6, "save_steps": 3, "logging_steps": 2,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **settings | options)
    texts = Texts(24)
    return Trainer(model, arguments, train_dataset=texts, eval_dataset=texts, callbacks=callbacks)


@pytest.mark.parametrize("family", KINDS)
def test_training_resumes_and_loads_bit_for_bit(family, tmp_path):
    model = sparsify(make(family), alpha_init=1.2)
    trainer(model, tmp_path).train()
    assert (heads(model).alpha - 1.2).abs().min() > 1e-3

    resumed = sparsify(make(family), alpha_init=1.2)
    trainer(resumed, tmp_path / "resumed").train(str(tmp_path / "checkpoint-3"))
    for name, values in model.state_dict().items():
        assert resumed.state_dict()[name].equal(values), name

    kind = getattr(transformers, KINDS[family])
    loaded = from_pretrained(kind, tmp_path / "checkpoint-6")
    assert heads(loaded).equals(heads(model))
    batch = inputs(family, "right")
    assert output(family, loaded, batch).equal(output(family, model.eval(), batch))


def test_alpha_is_trained_without_weight_decay(tmp_path):
    model = sparsify(make("bert"), alpha_init=1.5)
    run = trainer(model, tmp_path, weight_decay=0.1)
    run.create_optimizer()
    groups = run.optimizer.param_groups
    decay = {id(x): group["weight_decay"] for group in groups for x in group["params"]}
    alpha = [x for name, x in model.named_parameters() if "head_alpha" in name]
    assert [decay[id(parameter)] for parameter in alpha] == [0.0, 0.0]


class Tracker(TrainerCallback):
    """Keeps what it is handed, as callbacks of trackers do."""

    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs=None, **other):
        self.logged.append(dict(logs))


def test_callback_hands_alpha_to_trackers_and_history(tmp_path, capsys):
    model, tracker, batch = sparse("llama"), Tracker(), inputs("llama", "right")
    model.compile(backend="eager")
    run = trainer(model, tmp_path, callbacks=[tracker], eval_strategy="steps", eval_steps=6)
    callback = AlphaCallback([batch])
    assert callback.add_to(run) is callback
    run.train()
    printed = capsys.readouterr().out
    assert "eval_loss" in printed
    assert "head" not in printed
    name = "decoder_self/layer2/head4"
    alpha = [row[f"alpha/{name}"] for row in run.state.log_history if f"alpha/{name}" in row]
    assert len(alpha) >= 4
    assert alpha == [row[f"alpha/{name}"] for row in tracker.logged if f"alpha/{name}" in row]
    assert alpha[-1] == heads(model).alpha.iloc[-1] != alpha[0]
    measured = record(model, [batch])["heads"].iloc[-1]
    (row,) = [row for row in tracker.logged if f"density/{name}" in row]
    assert "eval_loss" in row
    assert row[f"density/{name}"] == pytest.approx(measured.density)
    assert row[f"entropy/{name}"] == pytest.approx(measured.entropy)
    assert sum("/head" in key for key in row) == 3 * 8


@pytest.mark.parametrize("family", KINDS)
def test_lora_trains_and_saves_alpha(family, tmp_path):
    targets = ["query", "value"] if family == "bert" else ["q_proj", "v_proj"]
    lora = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["head_alpha"])
    base = sparsify(make(family), alpha_init=1.2)
    model = peft.get_peft_model(base, lora)
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    assert sum("head_alpha" in name for name in trained) == 2
    trainer(model, tmp_path).train()
    assert (heads(model).alpha - 1.2).abs().min() > 1e-3
    assert all(x.abs().max() > 0 for n, x in model.named_parameters() if "lora_B" in n)

    model.save_pretrained(tmp_path / "adapter")
    again = sparsify(make(family), alpha_init=1.2)
    again = peft.PeftModel.from_pretrained(again, tmp_path / "adapter")
    assert heads(again).alpha.equals(heads(model).alpha)
    batch = inputs(family, "right")
    expected = output(family, model.eval(), batch)
    assert output(family, again, batch).equal(expected)
    merged = again.merge_and_unload()
    assert heads(merged).alpha.equals(heads(model).alpha)
    torch.testing.assert_close(output(family, merged, batch), expected, atol=1e-4, rtol=1e-4)


def test_lora_beside_attentions_that_keep_softmax():
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["head_alpha"])
    model = peft.get_peft_model(sparsify(make("llama"), layers=[0]), lora)
    before = output("llama", model, inputs("llama"))
    assert torch.isfinite(before).all()
    assert sparsify(model, layers=[0]) is model
    assert not hasattr(desparsify(model).config, "headwise")


def test_pipelines(tmp_path):
    letters = [*"abcdefghijklmnopqrstuvwxyz "]
    names = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", *letters, *map(str, range(66))]  # of every id
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    )
    texts = ["sparse heads", "of everybody"]
    model = sparse("llama")
    generate = transformers.pipeline("text-generation", model, tokenizer=tokenizer)
    result = generate(texts, max_new_tokens=4, do_sample=False, batch_size=2)
    for text, (row,) in zip(texts, result, strict=True):
        assert len(row["generated_text"]) > len(text)
    sparse("bert").save_pretrained(tmp_path)
    kind = transformers.AutoModelForSequenceClassification
    model = from_pretrained(kind, tmp_path, num_labels=3)
    classify = transformers.pipeline("text-classification", model, tokenizer=tokenizer)
    alone = [classify(text)[0]["score"] for text in texts]
    assert [row["score"] for row in classify(texts, batch_size=2)] == pytest.approx(alone)


PARALLEL = ("FSDP 1", "FSDP 2", "FSDP 2, bfloat16", "tensor parallel")
IDS = torch.randint(3, 97, (4, 24), generator=torch.Generator().manual_seed(1))


def parallel(kind, model, folder):
    if kind == "FSDP 1":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    if kind == "tensor parallel":
        config = DistributedConfig(tp_size=2, tp_plan="auto")
        return type(model).from_pretrained(folder, distributed_config=config).train()
    mesh = init_device_mesh("cpu", (2,))
    if kind == "FSDP 2, bfloat16":  # α stays float32, and FSDP wants one dtype at a time
        model.bfloat16()
        fully_shard([part for part in model.modules() if isinstance(part, HeadAlpha)], mesh=mesh)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def trained(kind, folder, rank):
    """Train for 25 steps from α = 1; return α of each step, and results of this process."""
    model = sparsify(make("llama").train())
    model = model if kind == "one process" else parallel(kind, model, folder)
    # eps is large, so that steps depend on the scale of gradients
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, eps=1e-4)
    has_all_rows = kind in ("one process", "tensor parallel")
    alphas = []
    for step in range(25):
        ids = IDS.roll(step, 1) if has_all_rows else IDS.roll(step, 1)[2 * rank :][:2]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        alphas.append(torch.tensor(heads(model).alpha.to_numpy()))
    table = record(model, {"input_ids": IDS})["heads"][["density", "entropy"]]
    return {"α": torch.stack(alphas), "measured": torch.tensor(table.to_numpy(float))}


def compare(rank, folder):
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    one = trained("one process", folder, rank)
    assert 0.05 < (one["α"] == 1).double().mean() < 0.5  # at a bound
    for kind in PARALLEL:
        for name, value in trained(kind, folder, rank).items():
            atol = 0.1 if "bfloat16" in kind else 1e-6 if name == "α" else 1e-5
            error = (value - one[name]).abs().max()
            assert error < atol, f"{kind}: {name} differs by {error}"
    dist.destroy_process_group()
    os._exit(0)  # autograd's thread may still release Python objects, which aborts while unwinding


def test_two_processes_train_alpha_as_one_does(tmp_path):
    sparsify(make("llama")).save_pretrained(tmp_path)
    torch.multiprocessing.start_processes(compare, (tmp_path,), 2, start_method="forkserver")
