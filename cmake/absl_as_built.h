#pragma once

// Included before everything else in builds with the address sanitizer: see ArgosyToolchain.cmake.
#include <absl/base/config.h>
#undef ABSL_HAVE_ADDRESS_SANITIZER
