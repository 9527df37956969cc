#pragma once

// The SentencePiece library, behind std types: its header declares an absl::string_view of its own, so no file includes it and Abseil.

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace argosy::train {

class SentencePieceOracle {
 public:
  // Fails the test where the file cannot be loaded.
  explicit SentencePieceOracle(const std::string& path);
  ~SentencePieceOracle();

  int PieceCount() const;
  int BosId() const;
  std::vector<int> Encode(const std::string& text) const;
  std::string Decode(const std::vector<int>& ids) const;

  // Trains by command-line flags; empty, or what went wrong.
  static std::string Train(const std::string& flags);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy::train
