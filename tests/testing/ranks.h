// SPDX-License-Identifier: Apache-2.0
//
// Runs work on ranks that are threads, and records how each rank's work ended.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/reduce.h"

namespace cpd::testing {

using Transports = std::vector<std::unique_ptr<Transport>>;

inline CommOptions options_of(std::int64_t chunk, double timeout = 60) {
  CommOptions options;
  options.timeout = timeout;
  options.chunk = chunk;
  return options;
}

/// The outcome of one rank's work.
struct Fate {
  enum class Kind : std::uint8_t { well, mismatch, lost, corrupt, error, other };
  Kind kind = Kind::well;
  std::string what;
  std::vector<int> lost;  ///< RankLost's
};

inline std::ostream& operator<<(std::ostream& out, const Fate& fate) {
  constexpr std::array kNames = {"well", "mismatch", "lost", "corrupt", "error", "other"};
  out << kNames.at(static_cast<std::size_t>(fate.kind)) << ": " << fate.what;
  return out;
}

inline Fate fate_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const RankLost& error) {
    return {Fate::Kind::lost, error.what(), error.ranks};
  } catch (const Mismatch& error) {
    return {Fate::Kind::mismatch, error.what(), {}};
  } catch (const Corrupt& error) {
    return {Fate::Kind::corrupt, error.what(), {}};
  } catch (const Error& error) {
    return {Fate::Kind::error, error.what(), {}};
  } catch (const std::exception& error) {
    return {Fate::Kind::other, error.what(), {}};
  }
}

/// Runs work(communicator) on one thread for each rank.
inline std::vector<Fate> on_ranks(Transports transports, const CommOptions& options,
                                  const std::function<void(Communicator&)>& work) {
  std::vector<Fate> fates(transports.size());
  std::vector<std::thread> threads;
  threads.reserve(transports.size());
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      fates[r] = fate_of([&] {
        Communicator comm(std::move(transports[r]), options);
        work(comm);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return fates;
}

inline std::vector<Fate> on_ranks(int world, const CommOptions& options,
                                  const std::function<void(Communicator&)>& work) {
  return on_ranks(LocalTransports(world), options, work);
}

inline void expect_well(const std::vector<Fate>& fates) {
  for (std::size_t r = 0; r < fates.size(); ++r) {
    EXPECT_EQ(fates[r].kind, Fate::Kind::well) << "rank " << r << ", " << fates[r];
  }
}

inline std::vector<TensorView> views_of(const Layers& layers) {
  std::vector<TensorView> views;
  for (const auto& layer : layers) views.push_back(view_of(layer));
  return views;
}

/// Copies the layers to the device where `there` makes its copies. Returns views of the copies.
inline std::vector<TensorView> views_of(const Layers& layers, Copies& there) {
  std::vector<TensorView> views = views_of(layers);
  for (TensorView& view : views) view = there(view);
  return views;
}

inline void read_back(const Layers& layers, const Copies& there) {
  for (const auto& layer : layers) there.Read(layer.data());
}

/// Returns layers of these sizes, filled with a number that no reduction in the tests gives.
inline Layers blank(const std::vector<std::int64_t>& sizes) {
  Layers layers;
  for (const std::int64_t n : sizes) layers.emplace_back(static_cast<std::size_t>(n), -12345.0F);
  return layers;
}

inline ::testing::AssertionResult same_layers(const Layers& expected, const Layers& got) {
  if (expected.size() != got.size()) return ::testing::AssertionFailure() << "other layers";
  for (std::size_t l = 0; l < expected.size(); ++l) {
    const auto same = bits_equal(expected[l], got[l]);
    if (!same) return ::testing::AssertionFailure() << "layer " << l << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace cpd::testing
