"""Ids and texts of generated hard texts against the live `tokenizers`, and chat templates against the live `transformers`."""

import hashlib
import json
import random
import struct
import subprocess
import unicodedata

import pytest
import tokenizers
import transformers

import models
from argosy_cluster import argosy_binary
from training_cluster import verb

SCRIPTS = ["latin é ñ ß ﬁ Ǆ", "Ελληνικά", "кириллица", "עברית", "العربية", "हिन्दी", "বাংলা", "ไทย", "မြန်မာ", "日本語ひらがなカタカナ", "中文漢字", "한국어 각", "አማርኛ", "ᚠᚢᚦ", "𝒜𝓁𝓅𝒽𝒶", "𓀀𓂀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
EMOJI = ["🙂", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "❤️", "☃︎", "1️⃣"]
MARKS = ["e\u0301", "o\u0308\u0323", "\u0301", "a\u0300\u0301\u0302\u0303", "\u093f", "각", "\u1100\u1161\u11a8"]
CONTROL = ["\x00", "\x01", "\x1b[0m", "\x7f", "\x85", "\u200b", "\u200d", "\u200e", "\u2028", "\u2029", "\ufeff", "\ufffd", "\u00a0", "\u3000", "\xad"]
SPACE = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\v", "\f"]
ENGLISH = ["the", "It's", "don't", "WE'LL", "I'd", "hello", "World", "2024", "3.14159", "1,000,000", "x=1;", "foo_bar", "http://a.b/c?d=e", "!!!", "...", "—", "(a)", "'s", "'S"]


def any_character(prng):
    """One that Unicode had when Python, and with it the system's PCRE2, took its tables: later ones are letters for one side and nothing for the other."""
    while True:
        character = chr(prng.randrange(0x110000))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character


def hard_texts(seed, count, special):
    """Texts in which everything that a tokenizer may trip over meets everything else."""
    prng = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(prng.randrange(1, 30)):
            kind = prng.randrange(10)
            if kind == 0:
                parts.append(prng.choice(SCRIPTS))
            elif kind == 1:
                parts.append(prng.choice(EMOJI))
            elif kind == 2:
                parts.append(prng.choice(MARKS))
            elif kind == 3:
                parts.append(prng.choice(CONTROL))
            elif kind in (4, 5):
                parts.append(prng.choice(SPACE))
            elif kind == 6 and special:
                parts.append(prng.choice(special))
            elif kind == 7:
                parts.append(any_character(prng))
            else:
                parts.append(prng.choice(ENGLISH))
        texts.append("".join(parts))
    prng.shuffle(texts)
    # Long runs, of one thing and of two.
    texts += ["a" * 3000, " " * 2000, "é" * 1500, "🙂" * 700, "\n" * 1000, "0" * 999, "ab" * 2000, "\u0301" * 500, "".join(prng.choice("abcdefgh") for _ in range(8000))]
    return texts


def tokenize(folder, lines, *flags, timeout=120):
    result = subprocess.run([argosy_binary(), "tokenize", "--model", str(folder), *flags], input="".join(json.dumps(line) + "\n" for line in lines),
                            capture_output=True, text=True, timeout=timeout, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]   # splitlines would cut at U+2028 too


FOLDERS = ["tokenizers/mistral-v1", "tokenizers/from-ggml-vocab-gpt-2", "tokenizers/from-ggml-vocab-qwen2", "tokenizers/torchtitan", "models/stories260K", "smollm2"]


@pytest.fixture(params=FOLDERS)
def folder(request):
    return request.getfixturevalue("smollm2") if request.param == "smollm2" else models.asset(request.param)


def test_hard_texts_have_the_ids_and_texts_of_hf_tokenizers(folder):
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    texts = hard_texts(f"{folder.name}", 1500, added[:20])
    ours = tokenize(folder, texts)
    wrong = [(text, mine, theirs) for text, mine, theirs in zip(texts, ours, (reference.encode(text).ids for text in texts)) if mine != theirs]
    assert not wrong, f"{len(wrong)} of {len(texts)}, first: {wrong[0]}"
    assert len(ours) == len(texts)

    for flags, skip in (([], True), (["--keep-special"], False)):
        decoded = tokenize(folder, ours, "--decode", *flags)
        wrong = [(ids, mine) for ids, mine in zip(ours, decoded) if mine != reference.decode(ids, skip_special_tokens=skip)]
        assert not wrong, f"{len(wrong)} of {len(texts)}, first: {wrong[0]}, for {reference.decode(wrong[0][0], skip_special_tokens=skip)!r}"
    streamed = tokenize(folder, ours, "--decode", "--stream")
    assert ["".join(pieces) for pieces in streamed] == tokenize(folder, ours, "--decode")


def test_random_ids_decode_as_hf_decodes_them(folder):
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prng = random.Random(5)
    ids = [[prng.randrange(reference.get_vocab_size()) for _ in range(prng.randrange(1, 40))] for _ in range(1500)]
    decoded = tokenize(folder, ids, "--decode", "--keep-special")
    wrong = [(one, mine, reference.decode(one, skip_special_tokens=False)) for one, mine in zip(ids, decoded) if mine != reference.decode(one, skip_special_tokens=False)]
    assert not wrong, f"{len(wrong)} of {len(ids)}, first: {wrong[0]}"


def test_tokens_of_a_tokens_json_are_found_and_the_saved_tokenizer_is_hfs(tmp_path, folder):
    marks = ["<START_Q>", "<END_Q>", "<START_A>", "<END_A>"]
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": marks}))
    texts = hard_texts("marks", 300, marks)
    ours = tokenize(folder, texts, "--special-token-path", tmp_path / "tokens.json")
    tokenize(folder, [], "--special-token-path", tmp_path / "tokens.json", "--save", tmp_path / "saved")
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in marks])
    for text, ids in zip(texts, ours):
        assert ids == reference.encode(text).ids == saved.encode(text).ids, text
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    assert [loaded(text).input_ids for text in texts[:50]] == ours[:50]


def test_a_megabyte_without_a_space_takes_seconds(tmp_path):
    for name in ("tokenizers/mistral-v1", "tokenizers/from-ggml-vocab-qwen2"):
        folder = models.asset(name)
        prng = random.Random(1)
        text = "".join(prng.choice("abcdefghijklmnopqrstuvwxyzäöü") for _ in range(1_000_000))
        [ids] = tokenize(folder, [text], timeout=60)
        assert ids == tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def test_smollm2s_golden_texts_and_corpora(smollm2):
    golden = json.loads((models.asset("models/SmolLM2-135M-Instruct") / "golden.json").read_text())
    cases = golden["cases"]
    assert tokenize(smollm2, [case["text"] for case in cases], "--no-special") == [case["ids"] for case in cases]
    assert tokenize(smollm2, [case["ids"] for case in cases], "--decode", "--keep-special") == [case["decoded"] for case in cases]
    rows = [json.loads(line) for line in open(models.asset("data/gsm8k/test.jsonl"), encoding="utf-8")]
    ids = tokenize(smollm2, [row["question"] + "\n" + row["answer"] for row in rows], "--no-special")
    packed = b"".join(struct.pack(f"<{len(row)}i", *row) for row in ids)
    assert hashlib.sha256(packed).hexdigest() == golden["corpora"]["gsm8k_test_question_newline_answer"]["sha256"]


# The styles of the families that are trained here; written for this test.
TEMPLATES = {
    "inst": "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
            "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
            "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}",
    "sys": "{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content'] %}\n    {%- set rest = messages[1:] %}\n{%- else %}\n"
           "    {%- set rest = messages %}\n{%- endif %}\n{{- bos_token }}\n{%- for m in rest %}\n    {%- if loop.first and system is defined %}\n"
           "        {{- '<<SYS>>\\n' ~ system ~ '\\n<</SYS>>\\n\\n' }}\n    {%- endif %}\n    {{- m.role | upper + ': ' + m.content }}\n"
           "    {%- if not loop.last %}{{ '\\n' }}{% endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '\\nASSISTANT:' }}\n{%- endif %}",
    "headers": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message"
               "['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "think": "{%- set ns = namespace(last=-1) %}\n{%- for m in messages[::-1] %}\n  {%- set i = messages | length - 1 - loop.index0 %}\n"
             "  {%- if ns.last < 0 and m.role == 'user' and m.content is string %}{% set ns.last = i %}{% endif %}\n{%- endfor %}\n"
             "{% for m in messages %}\n<|im_start|>{{ m.role }}\n{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
             "{% else %}{{ m.content }}{% endif %}{% if loop.index0 > ns.last %} (new){% endif %}<|im_end|>\n{% endfor %}\n"
             "{{ {'n': messages | length, 'roles': messages | map(attribute='role') | list} | tojson }}",
    "macro": "{% macro block(role, text='') %}<{{ role }}>{{ text }}</{{ role }}>{% endmacro %}{% for m in messages if m.role != 'system' %}{{ block(m.role, m.content) }}"
             "{% else %}nothing{% endfor %}{{ block('end') }}",
}
CONVERSATIONS = [
    [{"role": "user", "content": " What is 2+2? "}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello <b>you</b> 'n \"me\""}, {"role": "user", "content": "日本語 🙂\n\nnew line"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"},
     {"role": "user", "content": "more"}],
    [{"role": "assistant", "content": "first"}],
]


@pytest.mark.parametrize("style", [*TEMPLATES, "SmolLM2's own"])
def test_chat_templates_write_what_transformers_writes(tmp_path, request, style):
    if style in TEMPLATES:
        source = models.asset("tokenizers/mistral-v1")
        (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast",
                                                                    "chat_template": TEMPLATES[style]}))
        folder = tmp_path
    else:
        folder = request.getfixturevalue("smollm2")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    compared = 0
    for messages in CONVERSATIONS:
        for flag in ([], ["--add-generation-prompt"]):
            try:
                want = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=bool(flag))
            except Exception as refused:   # jinja2's TemplateError: what the template raises
                result = subprocess.run([argosy_binary(), "tokenize", "--model", str(folder), *flag], input=json.dumps({"messages": messages}) + "\n",
                                        capture_output=True, text=True, timeout=60)
                assert result.returncode != 0 and str(refused) in result.stderr
                continue
            [ours] = tokenize(folder, [{"messages": messages}], *flag)
            assert ours["text"] == want
            assert ours["ids"] == reference(want, add_special_tokens=False).input_ids
            compared += 1
    assert compared >= 2


def test_a_tokenizer_learnt_from_texts_is_the_one_that_hfs_trainer_learns(tmp_path):
    rows = [json.loads(line) for line in open(models.asset("data/gsm8k/train.jsonl"), encoding="utf-8")][:1500]
    texts = [row[key] for row in rows for key in ("question", "answer")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"question": row["question"], "answer": row["answer"]}) + "\n" for row in rows))
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": ["<START_Q>", "<END_Q>"]}))
    said = verb("tokenizer", "train", "--train-text", tmp_path / "rows.jsonl", "--special-token-path", tmp_path / "tokens.json", "--vocabulary-size", 3000, "--eos-token",
                "</s>", "--pad-token", "<pad>", "--padding-side", "left", "--output-dir", tmp_path / "made").stdout
    assert "3000 tokens, learnt from 3000 texts" in said

    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = tokenizers.Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    special = [token.content for _, token in sorted(ours.get_added_tokens_decoder().items())]
    assert special[:2] == ["<START_Q>", "<END_Q>"] and {"</s>", "<pad>"} <= set(special)
    theirs.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=3000, min_frequency=2, special_tokens=special, show_progress=False,
                                                                     initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    assert ours.get_vocab() == theirs.get_vocab()
    assert json.loads(ours.to_str())["model"]["merges"] == json.loads(theirs.to_str())["model"]["merges"]

    # The files load as any other's, and give the same ids here and there.
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    assert loaded.eos_token == "</s>" and loaded.pad_token == "<pad>" and loaded.padding_side == "left"
    hard = hard_texts("trained", 300, special)
    assert tokenize(tmp_path / "made", hard) == [loaded(text).input_ids for text in hard]
