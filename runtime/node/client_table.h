#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/node/process.h"
#include "runtime/store/object_table.h"
#include "runtime/wire/connection.h"

namespace argosy::node {

// A worker, driver or other node at the far end of one connection.
struct Client {
  std::shared_ptr<wire::Connection> connection;
  store::ClientNumber store_client = 0;
  bool registered = false;          // as a worker or driver
  bool is_driver = false;
  WorkerId worker;
  JobId job;
  wire::WorkerAddress address;
  uint32_t pid = 0;                 // of a driver
};

// The connections of this daemon, and who has registered on them.
//
// Thread:   the loop's.
class ClientTable {
 public:
  std::shared_ptr<Client> Add(std::shared_ptr<wire::Connection> connection, store::ClientNumber store_client) {
    auto client = std::make_shared<Client>();
    client->connection = std::move(connection);
    client->store_client = store_client;
    clients_[client->connection.get()] = client;
    return client;
  }
  // A newer connection of the same worker takes the older one's place.
  void SetRegistered(const std::shared_ptr<Client>& client) {
    client->registered = true;
    by_worker_[client->worker] = client;
  }
  void Remove(const std::shared_ptr<Client>& client) {
    clients_.erase(client->connection.get());
    if (auto at = by_worker_.find(client->worker); at != by_worker_.end() && at->second == client) by_worker_.erase(at);
  }
  // Null when it has not registered or its connection is gone.
  std::shared_ptr<Client> Find(WorkerId worker) const {
    auto at = by_worker_.find(worker);
    return at == by_worker_.end() ? nullptr : at->second;
  }
  std::vector<std::shared_ptr<Client>> All() const {
    std::vector<std::shared_ptr<Client>> all;
    for (const auto& [connection, client] : clients_) all.push_back(client);
    return all;
  }

 private:
  std::unordered_map<wire::Connection*, std::shared_ptr<Client>> clients_;
  std::unordered_map<WorkerId, std::shared_ptr<Client>> by_worker_;
};

}  // namespace argosy::node
