#!/usr/bin/env python3
"""What the hjson package (3.1.0), which DeepSpeed reads its files with, makes of files as people write them: hjson.json.

    pip install hjson && make_hjson.py > hjson.json
"""
import json

import hjson

TEXTS = [
    '{"train_batch_size": 8, "zero_optimization": {"stage": 3}}',
    '{train_batch_size: 8, zero_optimization: {stage: 3}}',
    'train_batch_size: 8\nzero_optimization: {\n  stage: 3\n}\n',
    '{\n  # rows\n  train_batch_size: 8 # of all\n  gradient_clipping: 1.0 // norm\n  /* two\n lines */ steps_per_print: 10\n}',
    '{\n  train_batch_size: 8\n  gradient_clipping: 5e-1\n}',
    '{a: 1,}', '{a: [1, 2, 3,], b: [1\n2\n3]}', '{a: []\n b: {}}',
    '{\n  type: AdamW\n  lr: auto\n}', '{\n  type: Adam W, of sorts # not a comment\n  next: 1\n}',
    "{a: 'single \"quoted\"', 'b': 'it\\'s'}", '{"a": "x\\ty\\u00e9", "b": "\\"" }',
    '{a: 5e8, b: 1e9, c: -0.5, d: 0, e: 12, f: true, g: false, h: null}',
    '{a: 007, b: 1}', '{a: 007\n b: +1\n c: .5\n d: 1.\n e: 1e\n}', '{a: trueish\n b: nulls\n c: true , d: 1}',
    "{\n  text: '''\n    first line\n      second\n    third\n    '''\n  next: 1\n}", "{\n text: '''one'''\n}",
    '{\n  path: C:\\temp\\x\n  url: http://host/path // gone\n}', '{"with space": 1, key-with.dots: 2, /*c*/ k3: 3}',
    '[1, 2, {a: b\n}]', '\ufeff{"a": 1}', '{"a": {"b": {"c": [[[1]]]}}}', '{\r\n  a: 1\r\n  b: text\r\n}\r\n', '  {"a" : 1 , "b" :2}  ',
    '{"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95,],}}, }', 'a: 1 # only one', '"a": 1\n"b": 2', '{\n a: "x" # after a text\n b: 2\n}',
]


def case(text):
    try:
        return {"hjson": text, "json": hjson.loads(text)}
    except hjson.HjsonDecodeError:
        return {"hjson": text}   # broken


print(json.dumps([case(text) for text in TEXTS], indent=1, ensure_ascii=True))
