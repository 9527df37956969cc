#pragma once

// What is precompiled once for all files that need torch.
#include <ATen/ATen.h>
