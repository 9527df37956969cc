#include "runtime/base/log.h"

#include <memory>

#include "spdlog/sinks/basic_file_sink.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace argosy {

void InitLog(const LogOptions& options) {
  std::shared_ptr<spdlog::logger> logger;
  if (options.file.empty()) {
    logger = std::make_shared<spdlog::logger>(options.process, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  } else {
    logger = std::make_shared<spdlog::logger>(options.process,
                                              std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file, false));
  }
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %n: %v");
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace argosy
