// SPDX-License-Identifier: Apache-2.0
//
// An emulation of libnccl that moves host memory over sockets of this host. It has the few
// functions that CPD's transport calls, with NCCL's rules. Communicators are nonblocking; a new
// group is refused while one is in progress. Three things differ from NCCL. When a group is no
// longer in progress, its data have arrived, since there is no stream. The length of a message is
// checked. The end of a peer is reported at once (ncclRemoteError).
#include <arpa/inet.h>
#include <fcntl.h>
#include <nccl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace {

class Failure : public std::exception {
 public:
  explicit Failure(ncclResult_t why) : result(why) {}
  ncclResult_t result;
};

/// An open socket.
class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

Socket listen_anywhere(std::uint16_t* port) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener.number() < 0 || bind(listener.number(), generic, length) != 0 ||
      listen(listener.number(), SOMAXCONN) != 0 ||
      getsockname(listener.number(), generic, &length) != 0) {
    throw Failure(ncclSystemError);
  }
  *port = ntohs(address.sin_port);
  return listener;
}

/// Waits until the socket can be read or written. Throws if `stop` is set.
void wait_for(int number, short what, const std::atomic<bool>& stop) {
  pollfd wanted{number, what, 0};
  while (poll(&wanted, 1, 5) == 0) {
    if (stop) throw Failure(ncclInternalError);
  }
}

Socket connect_to(std::uint16_t port) {
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (made.number() < 0 ||
      connect(made.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw Failure(ncclRemoteError);
  }
  const int on = 1;
  setsockopt(made.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return made;
}

Socket accept_from(const Socket& listener, const std::atomic<bool>& stop) {
  wait_for(listener.number(), POLLIN, stop);
  Socket made(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (made.number() < 0) throw Failure(ncclSystemError);
  const int on = 1;
  setsockopt(made.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return made;
}

template <class T>
void put(const Socket& to, const T* data, std::size_t count) {
  if (send(to.number(), data, count * sizeof(T), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(count * sizeof(T))) {
    throw Failure(ncclRemoteError);
  }
}

template <class T>
void get(const Socket& from, T* data, std::size_t count, const std::atomic<bool>& stop) {
  wait_for(from.number(), POLLIN, stop);
  if (recv(from.number(), data, count * sizeof(T), MSG_WAITALL) !=
      static_cast<ssize_t>(count * sizeof(T))) {
    throw Failure(ncclRemoteError);
  }
}

/// The message in which a rank introduces itself to the process that made the communicator's id.
struct Hello {
  std::int32_t rank, size;
  std::uint16_t port;
};

/// The contents of a unique id.
struct Id {
  std::uint64_t magic;
  std::uint16_t port;
};
constexpr std::uint64_t kMagic = 0x43504449444e4343U;

/// Collects the ports of all ranks and sends the list to every rank. Runs in the process that made
/// the communicator's id.
void introduce(const Socket& listener) {
  const std::atomic<bool> stop{false};
  std::vector<Socket> ranks(1);
  std::vector<std::uint16_t> ports(1);
  for (std::size_t met = 0; met < ranks.size(); ++met) {
    Socket from = accept_from(listener, stop);
    Hello hello{};
    get(from, &hello, 1, stop);
    ranks.resize(static_cast<std::size_t>(hello.size));
    ports.resize(ranks.size());
    ranks[static_cast<std::size_t>(hello.rank)] = std::move(from);
    ports[static_cast<std::size_t>(hello.rank)] = hello.port;
  }
  for (const Socket& rank : ranks) put(rank, ports.data(), ports.size());
}

struct Message {
  std::uint8_t* data;
  std::uint64_t bytes;
  std::uint64_t moved = 0;  ///< of the length, then of the data
  std::uint64_t length = 0;
};
constexpr std::uint64_t kLength = sizeof(std::uint64_t);

/// The messages to or from one peer, in order.
struct Line {
  std::deque<Message> messages;
};

struct Work {
  std::vector<Line> sends, receives;  ///< by peer
};

ssize_t move_some(int number, void* data, std::size_t bytes, bool outwards) {
  return outwards ? send(number, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                  : recv(number, data, bytes, MSG_DONTWAIT);
}

/// Sends or receives as much of the message as the socket allows. Returns true when the message is
/// complete.
bool move_message(int number, Message& message, bool outwards) {
  if (outwards) message.length = message.bytes;
  while (message.moved < kLength + message.bytes) {
    const bool in_length = message.moved < kLength;
    auto* data = in_length ? reinterpret_cast<std::uint8_t*>(&message.length) + message.moved
                           : message.data + (message.moved - kLength);
    const std::uint64_t left = (in_length ? kLength : kLength + message.bytes) - message.moved;
    const ssize_t moved = move_some(number, data, left, outwards);
    if (moved == 0) throw Failure(ncclRemoteError);
    if (moved < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
      throw Failure(ncclRemoteError);
    }
    message.moved += static_cast<std::uint64_t>(moved);
    if (message.moved == kLength && message.length != message.bytes) {
      throw Failure(ncclInvalidUsage);
    }
  }
  return true;
}

}  // namespace

struct ncclComm {
 public:
  ncclComm(int rank, int size, const Id& id) : rank_(rank), size_(size) {
    worker_ = std::thread([this, id] { Run(id); });
  }
  ~ncclComm() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;

  [[nodiscard]] int size() const { return size_; }
  ncclResult_t state() {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  ncclResult_t Ask(Work work) {
    const std::lock_guard lock(mutex_);
    if (state_ != ncclSuccess) return ncclInvalidUsage;
    state_ = ncclInProgress;
    work_ = std::make_unique<Work>(std::move(work));
    wake_.notify_all();
    return ncclInProgress;
  }

 private:
  void Run(const Id& id) {
    ncclResult_t result = ncclSuccess;
    try {
      Connect(id);
    } catch (const Failure& failure) {
      result = failure.result;
    }
    for (;;) {
      std::unique_lock lock(mutex_);
      state_ = result;
      wake_.wait(lock, [&] { return stop_ || work_ != nullptr; });
      if (stop_) return;
      const std::unique_ptr<Work> work = std::move(work_);
      lock.unlock();
      try {
        Do(*work);
      } catch (const Failure& failure) {
        result = failure.result;
      }
    }
  }

  void Connect(const Id& id) {
    peers_.resize(static_cast<std::size_t>(size_));
    std::uint16_t port = 0;
    const Socket listener = listen_anywhere(&port);
    const Socket root = connect_to(id.port);
    const Hello hello{rank_, size_, port};
    put(root, &hello, 1);
    std::vector<std::uint16_t> ports(peers_.size());
    get(root, ports.data(), ports.size(), stop_);
    for (int peer = 0; peer < rank_; ++peer) {
      Socket made = connect_to(ports[static_cast<std::size_t>(peer)]);
      put(made, &rank_, 1);
      peers_[static_cast<std::size_t>(peer)] = std::move(made);
    }
    for (int count = rank_ + 1; count < size_; ++count) {
      Socket made = accept_from(listener, stop_);
      int peer = 0;
      get(made, &peer, 1, stop_);
      peers_[static_cast<std::size_t>(peer)] = std::move(made);
    }
  }

  void Do(Work& work) {
    for (;;) {
      std::vector<pollfd> wanted;
      for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
        const int number = peers_[peer].number();
        short events = 0;
        if (Advance(work.sends[peer], number, true)) events |= POLLOUT;
        if (Advance(work.receives[peer], number, false)) events |= POLLIN;
        if (events != 0) wanted.push_back({number, events, 0});
      }
      if (wanted.empty()) return;
      if (stop_) throw Failure(ncclInternalError);
      poll(wanted.data(), wanted.size(), 5);
    }
  }

  /// Advances the messages to or from one peer. Returns true while messages are left.
  static bool Advance(Line& line, int number, bool outwards) {
    while (!line.messages.empty() && move_message(number, line.messages.front(), outwards)) {
      line.messages.pop_front();
    }
    return !line.messages.empty();
  }

  int rank_, size_;
  std::vector<Socket> peers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stop_{false};
  ncclResult_t state_ = ncclInProgress;
  std::unique_ptr<Work> work_;
  std::thread worker_;
};

namespace {

/// This thread's open group, between ncclGroupStart and ncclGroupEnd.
struct OpenGroup {
  bool is_open = false;
  ncclComm* comm = nullptr;
  Work work;
};
thread_local OpenGroup t_group;

ncclResult_t add(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm* comm,
                 bool outwards) {
  OpenGroup& group = t_group;
  if (type != ncclUint8 || peer < 0 || peer >= comm->size()) return ncclInvalidArgument;
  if (!group.is_open || (group.comm != nullptr && group.comm != comm)) return ncclInvalidUsage;
  group.comm = comm;
  group.work.sends.resize(static_cast<std::size_t>(comm->size()));
  group.work.receives.resize(static_cast<std::size_t>(comm->size()));
  auto& lines = outwards ? group.work.sends : group.work.receives;
  lines[static_cast<std::size_t>(peer)].messages.push_back(
      {static_cast<std::uint8_t*>(data), count});
  return ncclSuccess;
}

}  // namespace

#define CPD_EXPORT extern "C" __attribute__((visibility("default")))

CPD_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

CPD_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "failure of the stand-in";
  }
}

CPD_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* unique) {
  try {
    Id id{kMagic, 0};
    auto listener = std::make_shared<Socket>(listen_anywhere(&id.port));
    std::thread([listener] {
      try {
        introduce(*listener);
      } catch (const Failure&) {  // the ranks see that it is gone
      }
    }).detach();
    std::memset(unique, 0, sizeof *unique);
    std::memcpy(unique, &id, sizeof id);
  } catch (const Failure& failure) {
    return failure.result;
  }
  return ncclSuccess;
}

CPD_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId unique,
                                               int rank, ncclConfig_t* config) {
  Id id{};
  std::memcpy(&id, &unique, sizeof id);
  if (id.magic != kMagic || config->blocking != 0 || rank < 0 || rank >= size) {
    return ncclInvalidArgument;
  }
  *comm = new ncclComm(rank, size, id);
  return ncclInProgress;
}

CPD_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state();
  return ncclSuccess;
}

CPD_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t /*comm*/) { return ncclSuccess; }

CPD_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

CPD_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

CPD_EXPORT ncclResult_t ncclGroupStart() {
  if (t_group.is_open) return ncclInvalidUsage;
  t_group = {};
  t_group.is_open = true;
  return ncclSuccess;
}

CPD_EXPORT ncclResult_t ncclGroupEnd() {
  OpenGroup group = std::exchange(t_group, {});
  if (!group.is_open) return ncclInvalidUsage;
  return group.comm == nullptr ? ncclSuccess : group.comm->Ask(std::move(group.work));
}

CPD_EXPORT ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t /*stream*/) {
  return add(const_cast<void*>(data), count, type, peer, comm, true);
}

CPD_EXPORT ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t /*stream*/) {
  return add(data, count, type, peer, comm, false);
}
