// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/mpi/attendance.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace cpd {
namespace {

constexpr char kGivenUp = 'g';

/// Returns the number that an environment variable holds; -1 if it holds no number or is not set.
int NumberFrom(const char* variable) {
  const char* text = std::getenv(variable);
  int number = -1;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

/// Returns the description of a write lock on a whole file.
struct flock WholeFile() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Attendance::Attendance()
    : rank_(NumberFrom("OMPI_COMM_WORLD_RANK")),
      size_(NumberFrom("OMPI_COMM_WORLD_SIZE")),
      one_host_(size_ == NumberFrom("OMPI_COMM_WORLD_LOCAL_SIZE")) {
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
  const char* job = std::getenv("PMIX_NAMESPACE");
  if (folder == nullptr || job == nullptr || rank_ < 0 || size_ < 2) return;
  stem_ = std::string(folder) + "/cpd-" + job + ".";
  own_ = open(FileOf(rank_).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  struct flock lock = WholeFile();
  if (own_ < 0 || fcntl(own_, F_SETLK, &lock) != 0) stem_.clear();
}

std::string Attendance::FileOf(int rank) const { return stem_ + std::to_string(rank); }

void Attendance::GiveUp() const noexcept {
  if (stem_.empty()) return;
  while (write(own_, &kGivenUp, 1) < 0 && errno == EINTR) {
  }
}

Attendance::State Attendance::StateOf(int rank) const {
  const int file = open(FileOf(rank).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return State::absent;
  char said = 0;
  struct flock lock = WholeFile();
  const bool gave_up = read(file, &said, 1) == 1;
  const bool is_locked = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  if (gave_up) return State::given_up;
  return is_locked ? State::here : State::absent;
}

bool Attendance::HasGivenUp() const {
  if (stem_.empty()) return false;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && StateOf(rank) == State::given_up) return true;
  }
  return false;
}

std::vector<int> Attendance::Absent() const {
  std::vector<int> absent;
  if (stem_.empty() || !one_host_) return absent;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && StateOf(rank) == State::absent) absent.push_back(rank);
  }
  return absent;
}

}  // namespace cpd
