// SPDX-License-Identifier: Apache-2.0
//
// Tests that a missing transport library throws a MachineError that names the library.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cpd/comm/transport/libraries.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

TEST(Libraries, NcclThatIsNotThere) {
  setenv("CPD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  for (int turn = 0; turn < 2; ++turn) {  // a second call says the same
    try {
      MakeNcclId();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MachineError& error) {
      const std::string what = error.what();
      const bool built = what.find("PyPI: nvidia-nccl") != std::string::npos;
      const bool unbuilt = what.find("NCCL needs libcpd_nccl") != std::string::npos;
      EXPECT_TRUE(built || unbuilt) << what;
    }
  }
  unsetenv("CPD_NCCL_LIBRARY");
}

}  // namespace
}  // namespace cpd
