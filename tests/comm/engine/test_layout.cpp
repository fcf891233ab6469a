// SPDX-License-Identifier: Apache-2.0
//
// Tests how a layout divides the layers of a call into parts: the values of a part travel in one
// message.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "cpd/comm/engine/layout.h"

namespace cpd {
namespace {

TEST(Part, AddsAndCutsByPosition) {
  Part part;
  part.Add({0, 10, 5});
  part.Add({1, 0, 0});  // nothing
  part.Add({2, 3, 7});
  EXPECT_EQ(part.count, 12);
  ASSERT_EQ(part.segments.size(), 2U);
  const Part cut = part.Cut(3, 8);
  EXPECT_EQ(cut.count, 5);
  ASSERT_EQ(cut.segments.size(), 2U);
  EXPECT_EQ(cut.segments[0].begin, 13);
  EXPECT_EQ(cut.segments[0].count, 2);
  EXPECT_EQ(cut.segments[1].layer, 2);
  EXPECT_EQ(cut.segments[1].begin, 3);
  EXPECT_EQ(cut.segments[1].count, 3);
  EXPECT_EQ(part.Cut(5, 5).count, 0);
  const Part first = part.Cut(1, 3);  // nothing of the segment behind
  EXPECT_EQ(first.count, 2);
  EXPECT_EQ(first.segments.size(), 1U);
  const Part last = part.Cut(11, 12);
  EXPECT_EQ(last.count, 1);
  ASSERT_EQ(last.segments.size(), 1U);
  EXPECT_EQ(last.segments[0].begin, 9);
  Part twice = part;
  twice.Add(part);
  EXPECT_EQ(twice.count, 24);
}

TEST(Part, SegmentsBeginAtBytes) {
  Part part;
  part.Add({0, 0, 3});
  part.Add({1, 0, 9});
  EXPECT_EQ(part.Bytes(8), 12);
  EXPECT_EQ(part.Bytes(3), 2 + 4);
  EXPECT_EQ(part.Bytes(1), 1 + 2);
}

/// Every value of every layer belongs to exactly one part (the values of one message). That part
/// belongs to the slice that contains the value, and the values of a slice appear in order.
TEST(Layout, TakesEveryValueOnce) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{}, {0, 0}, {1}, {1000, 3, 0, 70000}, {5, 4097, 5}}) {
    for (const int slices : {1, 3, 8}) {
      for (const std::int64_t chunk : {1, 700, 1 << 20}) {
        Layout layout(sizes, slices, chunk);
        std::vector<std::vector<std::int64_t>> next(static_cast<std::size_t>(slices));
        for (int s = 0; s < slices; ++s) {
          for (const std::int64_t n : sizes) {
            next[static_cast<std::size_t>(s)].push_back(SliceBegin(n, slices, s));
          }
        }
        while (!layout.done()) {
          const std::vector<Part> parts = layout.Next();
          ASSERT_EQ(parts.size(), static_cast<std::size_t>(slices));
          for (std::size_t s = 0; s < parts.size(); ++s) {
            EXPECT_LE(parts[s].count, ((chunk - 1) / slices / 256 + 1) * 256);
            for (const Segment& segment : parts[s].segments) {
              std::int64_t& at = next[s][static_cast<std::size_t>(segment.layer)];
              EXPECT_EQ(segment.begin, at);
              at += segment.count;
            }
          }
        }
        for (int s = 0; s < slices; ++s) {
          for (std::size_t l = 0; l < sizes.size(); ++l) {
            EXPECT_EQ(next[static_cast<std::size_t>(s)][l], SliceBegin(sizes[l], slices, s + 1));
          }
        }
      }
    }
  }
}

/// Each layer has three slices, and the layout has three parts. Part s holds slice
/// (s - turns[l]) mod 3 of layer l, so turns[l] rotates the layer's slices. Every slice ends at the
/// end of a bucket.
TEST(Layout, TurnsSlicesOfALayer) {
  const std::vector<std::int64_t> sizes{7, 5, 1, 300}, buckets{1, 2, 1, 100}, turns{0, 1, 2, 5};
  Layout layout(sizes, 3, 1 << 20, buckets, turns);
  const std::vector<Part> parts = layout.Next();
  ASSERT_TRUE(layout.done());
  using Run = std::vector<std::array<std::int64_t, 3>>;
  const std::vector<Run> expected{{{0, 0, 3}, {1, 4, 1}, {3, 100, 100}},
                                  {{0, 3, 2}, {1, 0, 2}, {3, 200, 100}},
                                  {{0, 5, 2}, {1, 2, 2}, {2, 0, 1}, {3, 0, 100}}};
  for (std::size_t s = 0; s < parts.size(); ++s) {
    Run run;
    for (const Segment& x : parts[s].segments) run.push_back({x.layer, x.begin, x.count});
    EXPECT_EQ(run, expected[s]) << s;
  }
}

TEST(Layout, SliceBeginIsTheContracts) {
  for (const std::int64_t n : {0, 1, 5, 16, 17, 1000}) {
    for (const std::int64_t slices : {1, 3, 16}) {
      std::int64_t begin = 0;
      for (std::int64_t s = 0; s < slices; ++s) {
        EXPECT_EQ(SliceBegin(n, slices, s), begin);
        begin += n / slices + (s < n % slices ? 1 : 0);
      }
      EXPECT_EQ(SliceBegin(n, slices, slices), n);
      EXPECT_EQ(begin, n);
    }
  }
}

}  // namespace
}  // namespace cpd
