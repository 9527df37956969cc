"""A reader of TensorBoard's event files, from the formats' descriptions: records with masked CRC-32C around protocol-buffer messages."""

import struct


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data: bytes):
    at = 0
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at:at + 8])
        payload = data[at + 12:at + 12 + length]
        assert len(payload) == length and struct.unpack_from("<I", data, at + 12 + length)[0] == masked(payload)
        yield payload
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert kind == 2
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        yield key >> 3, value


def scalars(path):
    """{tag: {step: value}}; the first record must say the version."""
    found = {}
    events = [dict_of(event) for event in records(path.read_bytes())]
    assert events[0][3] == [b"brain.Event:2"]
    for event in events[1:]:
        for value in (dict_of(v) for summary in event[5] for v in dict_of(summary)[1]):
            found.setdefault(value[1][0].decode(), {})[event[2][0]] = value[2][0]
    return found


def dict_of(message):
    out = {}
    for number, value in fields(message):
        out.setdefault(number, []).append(value)
    return out
