#pragma once

// UTF-8 and the few Unicode properties that tokenizers ask for. Properties and normal forms come from utf8proc.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace argosy::train::unicode {

// The code point at `at`, which moves behind it. `text` is valid UTF-8 and at < text.size().
char32_t Next(std::string_view text, size_t& at);
void Append(std::string& out, char32_t code_point);

bool IsAscii(std::string_view text);
bool IsValid(std::string_view text);
// Every maximal ill-formed part becomes U+FFFD, as the Encoding Standard decodes.
std::string ToValid(std::string_view text);

// White_Space.
bool IsWhitespace(char32_t c);
// Categories Nd, Nl, No.
bool IsNumeric(char32_t c);
// ASCII punctuation and categories P* as they were in Unicode 8, whose table the reference still uses.
bool IsPunctuation(char32_t c);
// What \w matches by Unicode Technical Standard 18: alphabetic, marks, decimal digits, connectors, joiners.
bool IsWord(char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string Normalize(std::string_view text, NormalForm form);
// Code point by code point: no rule looks at the neighbours.
std::string Lowercase(std::string_view text);

// The byte-level alphabet of GPT-2: every byte stands for one printable code point. Printable Latin-1 bytes are themselves,
// the other 68 are U+0100 onward, in order.
char32_t ByteToCodePoint(uint8_t byte);
// The byte, or -1 for a code point outside the alphabet.
int CodePointToByte(char32_t c);
std::string BytesToAlphabet(std::string_view bytes);

}  // namespace argosy::train::unicode
