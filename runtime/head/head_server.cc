#include "runtime/head/head_server.h"

#include <thread>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "runtime/head/cluster_service.h"
#include "runtime/head/head_core.h"
#include "runtime/head/job_service.h"
#include "runtime/head/node_service.h"
#include "runtime/rpc/server.h"
#include "spdlog/spdlog.h"

namespace argosy::head {

// Members in the order in which they must outlive each other.
struct HeadServer::Impl {
  explicit Impl(HeadServerOptions o)
      : options(std::move(o)),
        folder(options.session_dir + "/head"),
        logs({.folder = folder + "/job_logs"}, loop, disk),
        packages(folder + "/packages"),
        gate(loop, options.token) {}

  HeadServerOptions options;
  std::string folder;
  async::Loop loop;
  async::Loop disk;
  std::unique_ptr<Journal> journal;
  JobLogs logs;
  PackageStore packages;
  rpc::CallGate gate;
  std::unique_ptr<HeadCore> core;
  std::unique_ptr<NodeService> node_service;
  std::unique_ptr<ClusterService> cluster_service;
  std::unique_ptr<JobService> job_service;
  std::unique_ptr<rpc::Server> server;
  std::thread disk_thread;
  std::thread loop_thread;
  uint16_t port = 0;
  bool running = false;
};

HeadServer::HeadServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HeadServer>> HeadServer::Start(HeadServerOptions options) {
  if (options.advertised_ip.empty()) options.advertised_ip = options.bind_ip;
  auto impl = std::make_unique<Impl>(std::move(options));
  Impl& self = *impl;
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(self.folder, 0700));
  ARGOSY_ASSIGN_OR_RETURN(self.journal, Journal::Open(self.folder + "/journal.sqlite", [&self](std::function<void()> f) { self.loop.Post(std::move(f)); }));
  ARGOSY_RETURN_IF_ERROR(self.logs.Open());
  ARGOSY_RETURN_IF_ERROR(self.packages.Open());
  HeadCore::Options core{.session_name = self.options.session_name,
                         .heartbeat = self.options.heartbeat,
                         .node_timeout = self.options.node_timeout,
                         .job_start_timeout = self.options.job_start_timeout};
  self.core = std::make_unique<HeadCore>(std::move(core), *self.journal, self.logs, self.loop, Clock::Real());
  ARGOSY_ASSIGN_OR_RETURN(std::vector<Journal::Row> rows, self.journal->Load());
  ARGOSY_RETURN_IF_ERROR(self.core->Restore(rows));
  self.node_service = std::make_unique<NodeService>(self.gate, *self.core);
  self.cluster_service = std::make_unique<ClusterService>(self.gate, *self.core, self.packages, self.disk);
  self.job_service = std::make_unique<JobService>(self.gate, *self.core);
  rpc::ServerOptions server{.bind_ip = self.options.bind_ip,
                            .port = self.options.port,
                            .token = self.options.token,
                            .services = {self.node_service.get(), self.cluster_service.get(), self.job_service.get()}};
  ARGOSY_ASSIGN_OR_RETURN(self.server, rpc::Server::Start(server));
  self.port = self.server->port();
  std::unique_ptr<HeadServer> head(new HeadServer(std::move(impl)));
  self.core->SetAddresses(head->address(), "");
  self.core->Start();
  self.running = true;
  self.disk_thread = std::thread([&self] { self.disk.Run(); });
  self.loop_thread = std::thread([&self] { self.loop.Run(); });
  spdlog::info("head listens on {}:{}", self.options.bind_ip, self.port);
  return head;
}

HeadServer::~HeadServer() { Stop(absl::ZeroDuration()); }

uint16_t HeadServer::port() const { return impl_->port; }

std::string HeadServer::address() const {
  const std::string& ip = impl_->options.advertised_ip;
  return ip.find(':') == std::string::npos ? fmt::format("{}:{}", ip, impl_->port) : fmt::format("[{}]:{}", ip, impl_->port);
}

std::shared_ptr<grpc::Channel> HeadServer::LocalChannel() { return impl_->server->LocalChannel(); }

void HeadServer::SetDashboardUrl(const std::string& url) {
  impl_->loop.Post([impl = impl_.get(), address = address(), url] { impl->core->SetAddresses(address, url); });
}

void HeadServer::Stop(absl::Duration grace) {
  Impl& self = *impl_;
  if (!self.running) return;
  self.running = false;
  // The loops run until the last call is answered; then what they still hold runs, in order: uploads and downloads go
  // loop, disk, loop at most.
  self.server->Stop(grace);
  self.loop.Post([&self] { self.disk.Post([&self] { self.loop.Post([&self] { self.disk.Post([&self] { self.disk.Stop(); }); }); }); });
  self.disk_thread.join();
  self.loop.Post([&self] { self.loop.Stop(); });
  self.loop_thread.join();
  self.journal = nullptr;   // commits what is queued
}

}  // namespace argosy::head
