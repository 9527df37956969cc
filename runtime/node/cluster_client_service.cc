#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "argosy/v1/head.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/node/cluster_client.h"
#include "runtime/node/node_codec.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"
#include "runtime/rpc/utf8.h"

namespace argosy::node {
namespace {

// A lost answer of a call, while the connection seems fine, is noticed after this on top of what the call may wait.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);

}  // namespace

// What is under way. Shared with gRPC's callbacks.
struct ClusterClient::Calls : std::enable_shared_from_this<ClusterClient::Calls> {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::ClusterService::Stub> stub;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, grpc::ClientContext*> contexts;    // guarded by mutex; of calls that gRPC has
  bool stopped = false;                                 // guarded by mutex
  uint64_t next = 1;                                    // the loop's

  bool Add(uint64_t number, grpc::ClientContext* context) {
    std::lock_guard lock(mutex);
    if (stopped) return false;
    contexts[number] = context;
    return true;
  }
  void Remove(uint64_t number) {
    std::lock_guard lock(mutex);
    contexts.erase(number);
    changed.notify_all();
  }
};

ClusterClient::ClusterClient(async::Loop& loop, ClusterClientOptions options)
    : loop_(loop), options_(std::move(options)), calls_(std::make_shared<Calls>()) {
  calls_->channel = rpc::OpenChannel({.address = options_.address, .token = options_.token});
  calls_->stub = v1::ClusterService::NewStub(calls_->channel);
}

ClusterClient::~ClusterClient() {
  std::unique_lock lock(calls_->mutex);
  calls_->stopped = true;
  for (auto& [number, context] : calls_->contexts) context->TryCancel();
  calls_->changed.wait(lock, [this] { return calls_->contexts.empty(); });
}

template <class Request, class Reply, class Result, class Method>
void ClusterClient::Call(Method method, Request request, Retry retry, std::function<Result(const Reply&)> convert, Done<Result> done) {
  // One attempt after another; each has a context of its own.
  struct Attempt {
    grpc::ClientContext context;
    Reply reply;
  };
  struct State : std::enable_shared_from_this<State> {
    std::shared_ptr<Calls> calls;
    async::Loop* loop = nullptr;
    Method method;
    Request request;
    Retry retry;
    std::function<Result(const Reply&)> convert;
    Done<Result> done;
    uint64_t number = 0;
    absl::Time give_up;
    absl::Duration retry_every;
    std::unique_ptr<async::Timer> timer;

    void Try() {
      auto attempt = std::make_shared<Attempt>();
      if (retry.allowed) rpc::SetDeadline(attempt->context, kAnswerTimeout + retry.wait);
      if (!calls->Add(number, &attempt->context)) return;
      auto self = this->shared_from_this();
      (calls->stub->async()->*method)(&attempt->context, &request, &attempt->reply, [self, attempt](grpc::Status status) {
        // The calls' owner may be gone once the context is out of the list: then the loop may be too.
        std::lock_guard lock(self->calls->mutex);
        if (!self->calls->stopped) {
          self->loop->Post([self, attempt, status] { self->Finish(*attempt, rpc::FromGrpc(status)); });
        }
        self->calls->contexts.erase(self->number);
        self->calls->changed.notify_all();
      });
    }
    void Finish(Attempt& attempt, absl::Status status) {
      {
        std::lock_guard lock(calls->mutex);
        if (calls->stopped) return;
      }
      bool again = retry.allowed && (status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded) &&
                   Clock::Real().Now() < give_up;
      if (again) {
        timer = std::make_unique<async::Timer>(*loop);
        timer->After(retry_every, [self = this->shared_from_this()] {
          {
            std::lock_guard lock(self->calls->mutex);
            if (self->calls->stopped) return;
          }
          self->Try();
        });
        return;
      }
      // What the timer holds would keep this state alive.
      timer = nullptr;
      if (status.ok()) done(convert(attempt.reply));
      else done(status);
    }
  };

  if (absl::Status good = rpc::CheckUtf8(request); !good.ok()) return done(good);
  size_t under_way;
  {
    std::lock_guard lock(calls_->mutex);
    under_way = calls_->contexts.size();
  }
  if (under_way >= options_.calls_max) {
    return done(MakeStatus(absl::StatusCode::kResourceExhausted, "{} calls to the head are under way on this node", under_way));
  }
  auto state = std::make_shared<State>();
  state->calls = calls_;
  state->loop = &loop_;
  state->method = method;
  state->request = std::move(request);
  state->retry = retry;
  state->convert = std::move(convert);
  state->done = std::move(done);
  state->number = calls_->next++;
  state->give_up = Clock::Real().Now() + options_.retry_for + retry.wait;
  state->retry_every = options_.retry_every;
  state->Try();
}

// The overload of the stub's method that takes a callback.
#define ARGOSY_CLUSTER_METHOD(name, Request, Reply)                                                                                  \
  static_cast<void (v1::ClusterService::StubInterface::async_interface::*)(grpc::ClientContext*, const v1::Request*, v1::Reply*,     \
                                                                           std::function<void(grpc::Status)>)>(                      \
      &v1::ClusterService::StubInterface::async_interface::name)

void ClusterClient::RequestLease(const LeaseCall& call, Done<wire::LeaseGrant> done) {
  v1::LeaseRequest request;
  request.set_request_id(call.request_id);
  request.set_job_id(IdBytes(call.job));
  request.set_holder_worker_id(IdBytes(call.holder));
  request.set_holder_node_id(IdBytes(call.holder_node));
  *request.mutable_demand() = ToProto(call.demand);
  *request.mutable_code() = ToProto(call.code);
  request.set_deadline_seconds(call.deadline_seconds);
  Call<v1::LeaseRequest, v1::LeaseReply, wire::LeaseGrant>(
      ARGOSY_CLUSTER_METHOD(RequestLease, LeaseRequest, LeaseReply), std::move(request), Retry{.allowed = false},
      [](const v1::LeaseReply& reply) {
        wire::LeaseGrant grant{IdFrom<LeaseId>(reply.lease_id()), FromProto(reply.worker()), {}};
        grant.gpu_ids.assign(reply.gpu_ids().begin(), reply.gpu_ids().end());
        return grant;
      },
      std::move(done));
}

void ClusterClient::WithdrawLease(const std::string& request_id) {
  v1::WithdrawLeaseRequest request;
  request.set_request_id(request_id);
  Call<v1::WithdrawLeaseRequest, v1::Empty, wire::Empty>(
      ARGOSY_CLUSTER_METHOD(WithdrawLease, WithdrawLeaseRequest, Empty), std::move(request), {}, [](const v1::Empty&) { return wire::Empty{}; },
      [](absl::StatusOr<wire::Empty> result) {
        if (!result.ok()) spdlog::warn("a lease request was not withdrawn: {}", Message(result.status()));
      });
}

void ClusterClient::ReturnLease(LeaseId lease, NodeId node, bool worker_failed) {
  v1::ReturnLeaseRequest request;
  request.set_lease_id(IdBytes(lease));
  request.set_node_id(IdBytes(node));
  request.set_worker_failed(worker_failed);
  Call<v1::ReturnLeaseRequest, v1::Empty, wire::Empty>(
      ARGOSY_CLUSTER_METHOD(ReturnLease, ReturnLeaseRequest, Empty), std::move(request), {}, [](const v1::Empty&) { return wire::Empty{}; },
      [lease](absl::StatusOr<wire::Empty> result) {
        if (!result.ok()) spdlog::warn("lease {} was not returned: {}", lease.Short(), Message(result.status()));
      });
}

void ClusterClient::CreateActor(const wire::ActorSpec& spec, Done<wire::ActorInfo> done) {
  v1::CreateActorRequest request;
  *request.mutable_spec() = ToProto(spec);
  Call<v1::CreateActorRequest, v1::ActorInfo, wire::ActorInfo>(
      ARGOSY_CLUSTER_METHOD(CreateActor, CreateActorRequest, ActorInfo), std::move(request), {},
      [](const v1::ActorInfo& info) { return FromProto(info); }, std::move(done));
}

void ClusterClient::ResolveActor(const wire::ResolveActor& wanted, Done<wire::ActorInfo> done) {
  v1::ResolveActorRequest request;
  request.set_actor_id(IdBytes(wanted.actor));
  request.set_name(wanted.name);
  request.set_namespace_(wanted.ns);
  request.set_incarnation_min(wanted.incarnation_min);
  request.set_wait_seconds(wanted.wait_seconds);
  Call<v1::ResolveActorRequest, v1::ActorInfo, wire::ActorInfo>(
      ARGOSY_CLUSTER_METHOD(ResolveActor, ResolveActorRequest, ActorInfo), std::move(request),
      Retry{.wait = absl::Seconds(wanted.wait_seconds)}, [](const v1::ActorInfo& info) { return FromProto(info); }, std::move(done));
}

void ClusterClient::KillActor(const wire::KillActor& wanted, Done<wire::Empty> done) {
  v1::KillActorRequest request;
  request.set_actor_id(IdBytes(wanted.actor));
  request.set_no_restart(wanted.no_restart);
  request.set_reason(wanted.reason);
  Call<v1::KillActorRequest, v1::Empty, wire::Empty>(ARGOSY_CLUSTER_METHOD(KillActor, KillActorRequest, Empty), std::move(request), {},
                                                     [](const v1::Empty&) { return wire::Empty{}; }, std::move(done));
}

void ClusterClient::ListActors(const wire::ListActors& wanted, Done<wire::ListActorsReply> done) {
  v1::ListActorsRequest request;
  request.set_include_dead(wanted.include_dead);
  Call<v1::ListActorsRequest, v1::ListActorsReply, wire::ListActorsReply>(
      ARGOSY_CLUSTER_METHOD(ListActors, ListActorsRequest, ListActorsReply), std::move(request), {},
      [](const v1::ListActorsReply& reply) {
        wire::ListActorsReply out;
        for (const v1::ActorInfo& info : reply.actors()) out.actors.push_back(FromProto(info));
        return out;
      },
      std::move(done));
}

void ClusterClient::CreateGroups(const std::vector<GroupCall>& groups, Done<std::vector<absl::StatusOr<wire::GroupInfo>>> done) {
  v1::CreateGroupsRequest request;
  using Results = std::vector<absl::StatusOr<wire::GroupInfo>>;
  // A group whose text cannot be sent fails alone.
  auto results = std::make_shared<Results>(groups.size(), absl::UnknownError(""));
  std::vector<size_t> sent;   // which of `groups`
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupCall& call = groups[i];
    v1::GroupSpec* spec = request.add_groups();
    spec->set_group_id(IdBytes(call.group.group));
    spec->set_name(call.group.name);
    spec->set_strategy(static_cast<v1::GroupSpec::Strategy>(call.group.strategy));
    for (const wire::Bundle& bundle : call.group.bundles) {
      v1::Bundle* out = spec->add_bundles();
      for (const auto& [name, amount] : bundle.resources) (*out->mutable_resources())[name] = amount;
      for (const auto& [key, value] : bundle.label_selector) (*out->mutable_label_selector())[key] = value;
    }
    spec->set_job_id(IdBytes(call.job));
    spec->set_detached(call.group.detached);
    if (absl::Status good = rpc::CheckUtf8(*spec); !good.ok()) {
      (*results)[i] = std::move(good);
      request.mutable_groups()->RemoveLast();
    } else {
      sent.push_back(i);
    }
  }
  if (sent.empty()) return done(std::move(*results));
  Call<v1::CreateGroupsRequest, v1::CreateGroupsReply, Results>(
      ARGOSY_CLUSTER_METHOD(CreateGroups, CreateGroupsRequest, CreateGroupsReply), std::move(request), {},
      [results, sent](const v1::CreateGroupsReply& reply) {
        for (size_t i = 0; i < sent.size(); ++i) {
          absl::StatusOr<wire::GroupInfo>& info = (*results)[sent[i]];
          if (static_cast<int>(i) >= reply.results_size()) {
            info = Internal("the head answered for {} of {} groups", reply.results_size(), sent.size());
            continue;
          }
          const v1::CreateGroupResult& result = reply.results(static_cast<int>(i));
          if (result.error_code() == 0) info = FromProto(result.group());
          else info = absl::Status(static_cast<absl::StatusCode>(result.error_code()), result.error());
        }
        return std::move(*results);
      },
      std::move(done));
}

void ClusterClient::WaitGroup(const wire::WaitGroup& wanted, Done<wire::GroupInfo> done) {
  v1::WaitGroupRequest request;
  request.set_group_id(IdBytes(wanted.group));
  request.set_wait_seconds(wanted.wait_seconds);
  Call<v1::WaitGroupRequest, v1::GroupInfo, wire::GroupInfo>(
      ARGOSY_CLUSTER_METHOD(WaitGroup, WaitGroupRequest, GroupInfo), std::move(request), Retry{.wait = absl::Seconds(wanted.wait_seconds)},
      [](const v1::GroupInfo& info) { return FromProto(info); }, std::move(done));
}

void ClusterClient::RemoveGroup(const wire::RemoveGroup& wanted, Done<wire::Empty> done) {
  v1::RemoveGroupRequest request;
  request.set_group_id(IdBytes(wanted.group));
  Call<v1::RemoveGroupRequest, v1::Empty, wire::Empty>(ARGOSY_CLUSTER_METHOD(RemoveGroup, RemoveGroupRequest, Empty), std::move(request), {},
                                                       [](const v1::Empty&) { return wire::Empty{}; }, std::move(done));
}

void ClusterClient::KvPut(const wire::KvPut& wanted, Done<wire::KvPutReply> done) {
  v1::KvPutRequest request;
  request.set_namespace_(wanted.ns);
  request.set_key(wanted.key);
  request.set_value(wanted.value);
  request.set_overwrite(wanted.overwrite);
  // Without overwrite a repeat would say that the key was taken, by the first try.
  Call<v1::KvPutRequest, v1::KvPutReply, wire::KvPutReply>(
      ARGOSY_CLUSTER_METHOD(KvPut, KvPutRequest, KvPutReply), std::move(request), Retry{.allowed = wanted.overwrite},
      [](const v1::KvPutReply& reply) { return wire::KvPutReply{reply.added()}; }, std::move(done));
}

void ClusterClient::KvGet(const wire::KvGet& wanted, Done<wire::KvGetReply> done) {
  v1::KvGetRequest request;
  request.set_namespace_(wanted.ns);
  request.set_key(wanted.key);
  Call<v1::KvGetRequest, v1::KvGetReply, wire::KvGetReply>(
      ARGOSY_CLUSTER_METHOD(KvGet, KvGetRequest, KvGetReply), std::move(request), {},
      [](const v1::KvGetReply& reply) {
        return reply.found() ? wire::KvGetReply{reply.value()} : wire::KvGetReply{};
      },
      std::move(done));
}

void ClusterClient::KvDelete(const wire::KvDelete& wanted, Done<wire::KvDeleteReply> done) {
  v1::KvDeleteRequest request;
  request.set_namespace_(wanted.ns);
  request.set_key(wanted.key);
  Call<v1::KvDeleteRequest, v1::KvDeleteReply, wire::KvDeleteReply>(
      ARGOSY_CLUSTER_METHOD(KvDelete, KvDeleteRequest, KvDeleteReply), std::move(request), {},
      [](const v1::KvDeleteReply& reply) { return wire::KvDeleteReply{reply.deleted()}; }, std::move(done));
}

void ClusterClient::KvList(const wire::KvList& wanted, Done<wire::KvListReply> done) {
  v1::KvListRequest request;
  request.set_namespace_(wanted.ns);
  request.set_prefix(wanted.prefix);
  Call<v1::KvListRequest, v1::KvListReply, wire::KvListReply>(
      ARGOSY_CLUSTER_METHOD(KvList, KvListRequest, KvListReply), std::move(request), {},
      [](const v1::KvListReply& reply) {
        return wire::KvListReply{{reply.keys().begin(), reply.keys().end()}};
      },
      std::move(done));
}

void ClusterClient::ListNodes(Done<wire::ListNodesReply> done) {
  Call<v1::Empty, v1::ListNodesReply, wire::ListNodesReply>(
      ARGOSY_CLUSTER_METHOD(ListNodes, Empty, ListNodesReply), v1::Empty(), {},
      [](const v1::ListNodesReply& reply) {
        wire::ListNodesReply out;
        for (const v1::NodeInfo& info : reply.nodes()) out.nodes.push_back(FromProto(info));
        return out;
      },
      std::move(done));
}

void ClusterClient::Explain(const wire::Demand& demand, Done<wire::ExplainReply> done) {
  Call<v1::Demand, v1::ExplainReply, wire::ExplainReply>(
      ARGOSY_CLUSTER_METHOD(ExplainDemand, Demand, ExplainReply), ToProto(demand), {},
      [](const v1::ExplainReply& reply) { return wire::ExplainReply{reply.placeable(), reply.text()}; }, std::move(done));
}

void ClusterClient::WorkerFate(WorkerId worker, NodeId node, Done<wire::WorkerFateReply> done) {
  v1::WorkerFateRequest request;
  request.set_worker_id(IdBytes(worker));
  request.set_node_id(IdBytes(node));
  Call<v1::WorkerFateRequest, v1::WorkerFateReply, wire::WorkerFateReply>(
      ARGOSY_CLUSTER_METHOD(WorkerFate, WorkerFateRequest, WorkerFateReply), std::move(request), {},
      [](const v1::WorkerFateReply& reply) { return wire::WorkerFateReply{reply.dead(), reply.reason(), reply.node_lost(), reply.out_of_memory()}; },
      std::move(done));
}

namespace {

// Reads a package's stream; deletes itself.
class PackageReader final : public grpc::ClientReadReactor<v1::PackageChunk> {
 public:
  using Finish = std::function<void(const grpc::Status&)>;
  PackageReader(std::function<void(std::string)> chunk, Finish finish) : chunk_(std::move(chunk)), finish_(std::move(finish)) {}
  void Begin(v1::ClusterService::Stub& stub, const std::string& name) {
    request_.set_name(name);
    stub.async()->GetPackage(&context_, &request_, this);
    StartRead(&in_);
    StartCall();
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    chunk_(std::move(*in_.mutable_data()));
    StartRead(&in_);
  }
  void OnDone(const grpc::Status& status) override {
    Finish finish = std::move(finish_);
    grpc::Status copy = status;
    // The context is used until it leaves the list, which `finish` does.
    finish(copy);
    delete this;
  }

  std::function<void(std::string)> chunk_;
  Finish finish_;
  grpc::ClientContext context_;
  v1::PackageName request_;
  v1::PackageChunk in_;
};

// Sends a file as a package's stream; deletes itself. The disk is read where gRPC calls.
class PackageWriter final : public grpc::ClientWriteReactor<v1::PackageChunk> {
 public:
  using Finish = std::function<void(const absl::Status&)>;
  PackageWriter(const std::string& name, const std::string& path, Finish finish) : path_(path), finish_(std::move(finish)) {
    chunk_.set_name(name);
    fd_.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info{};
    if (!fd_.ok() || ::fstat(fd_.get(), &info) != 0) problem_ = ErrnoStatus(errno, path);
    total_ = static_cast<uint64_t>(info.st_size);
  }
  void Begin(v1::ClusterService::Stub& stub) {
    stub.async()->PutPackage(&context_, &reply_, this);
    Next();
    StartCall();
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  void OnWriteDone(bool ok) override {
    if (ok) Next();
  }
  void OnDone(const grpc::Status& status) override {
    Finish finish = std::move(finish_);
    finish(problem_.ok() ? rpc::FromGrpc(status) : problem_);
    delete this;
  }
  void Next() {
    if (problem_.ok() && (sent_ < total_ || !started_)) {
      started_ = true;
      chunk_.set_total_size(total_);
      std::string* data = chunk_.mutable_data();
      data->resize(std::min<uint64_t>(1 << 20, total_ - sent_));
      ssize_t n = data->empty() ? 0 : ::pread(fd_.get(), data->data(), data->size(), static_cast<off_t>(sent_));
      if (n >= 0 && (n > 0 || data->empty())) {
        data->resize(static_cast<size_t>(n));
        sent_ += static_cast<uint64_t>(n);
        return StartWrite(&chunk_);
      }
      problem_ = ErrnoStatus(n < 0 ? errno : EIO, path_);
    }
    // The head sees from the size that a stream which ends early is not all.
    StartWritesDone();
  }

  std::string path_;
  Finish finish_;
  grpc::ClientContext context_;
  v1::PackageChunk chunk_;
  v1::PackageStatus reply_;
  UniqueFd fd_;
  absl::Status problem_;
  uint64_t total_ = 0;
  uint64_t sent_ = 0;
  bool started_ = false;
};

}  // namespace

void ClusterClient::HasPackage(const std::string& name, Done<bool> done) {
  v1::PackageName request;
  request.set_name(name);
  Call<v1::PackageName, v1::PackageStatus, bool>(ARGOSY_CLUSTER_METHOD(HasPackage, PackageName, PackageStatus), std::move(request), Retry{},
                                                 [](const v1::PackageStatus& reply) { return reply.exists(); }, std::move(done));
}

void ClusterClient::PutPackage(const std::string& name, const std::string& path, std::function<void(absl::Status)> done) {
  std::shared_ptr<Calls> calls = calls_;
  uint64_t number = calls->next++;
  async::Loop* loop = &loop_;
  auto* writer = new PackageWriter(name, path, [calls, loop, number, done = std::move(done)](const absl::Status& status) {
    std::lock_guard lock(calls->mutex);
    if (!calls->stopped) loop->Post([done, status] { done(status); });
    calls->contexts.erase(number);
    calls->changed.notify_all();
  });
  if (!calls->Add(number, writer->context())) {
    delete writer;
    return;
  }
  writer->Begin(*calls->stub);
}

void ClusterClient::GetPackage(const std::string& name, std::function<void(std::string)> chunk, std::function<void(absl::Status)> done) {
  std::shared_ptr<Calls> calls = calls_;
  uint64_t number = calls->next++;
  async::Loop* loop = &loop_;
  auto post = [calls, loop](std::function<void()> function) {
    std::lock_guard lock(calls->mutex);
    if (calls->stopped) return;
    loop->Post([calls, function = std::move(function)] {
      {
        std::lock_guard lock(calls->mutex);
        if (calls->stopped) return;
      }
      function();
    });
  };
  auto shared_chunk = std::make_shared<std::function<void(std::string)>>(std::move(chunk));
  auto* reader = new PackageReader(
      [post, shared_chunk](std::string bytes) {
        auto data = std::make_shared<std::string>(std::move(bytes));
        post([shared_chunk, data] { (*shared_chunk)(std::move(*data)); });
      },
      [post, calls, number, done = std::move(done)](const grpc::Status& status) {
        post([done, status = rpc::FromGrpc(status)] { done(status); });
        calls->Remove(number);
      });
  if (!calls->Add(number, reader->context())) {
    delete reader;
    return;
  }
  reader->Begin(*calls->stub, name);
}

}  // namespace argosy::node
