#include <mutex>
#include <unordered_map>

#include "runtime/api/process.h"

namespace argosy::internal {
namespace {

constinit FunctionEntry* functions = nullptr;
constinit ExceptionEntry* exceptions = nullptr;

std::unordered_map<std::string, const FunctionEntry*>& ByName() {
  static auto* map = new std::unordered_map<std::string, const FunctionEntry*>();
  return *map;
}

std::string PlaceOf(const FunctionEntry& entry) {
  if (!entry.named) return fmt::format("{} (by its own name)", entry.name);
  return fmt::format("{}:{}", entry.place.file_name(), entry.place.line());
}

}  // namespace

// Called by static initialisers only, one thread.
void RegisterFunction(FunctionEntry& entry) {
  for (FunctionEntry* other = functions; other != nullptr; other = other->next) {
    if (other == &entry) return;
  }
  entry.next = functions;
  functions = &entry;
}

FunctionEntry* RegisteredFunctions() { return functions; }

void RegisterException(ExceptionEntry& entry) {
  entry.next = exceptions;
  exceptions = &entry;
}

bool IsOneOf(const std::vector<std::string>& types, const std::exception_ptr& thrown) {
  for (const std::string& name : types) {
    if (name == "*") return true;
    for (const ExceptionEntry* entry = exceptions; entry != nullptr; entry = entry->next) {
      if (entry->name == name && entry->matches(thrown)) return true;
    }
  }
  return false;
}

void CheckFunctions() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (FunctionEntry* entry = functions; entry != nullptr; entry = entry->next) {
      if (!entry->named && entry->name.str().find("lambda") != std::string::npos) {
        throw RuntimeError(fmt::format("a lambda has no name that another process would know: give it one with argosy::Name ({})", entry->name));
      }
      auto [it, is_new] = ByName().emplace(entry->name, entry);
      if (!is_new && it->second->invoke != entry->invoke) {
        throw RuntimeError(fmt::format("two functions have the wire name \"{}\": {} and {}. Name one of them with argosy::Name", entry->name,
                                       PlaceOf(*it->second), PlaceOf(*entry)));
      }
    }
  });
}

const FunctionEntry* FindFunction(const std::string& name) {
  auto it = ByName().find(name);
  return it == ByName().end() ? nullptr : it->second;
}

}  // namespace argosy::internal
