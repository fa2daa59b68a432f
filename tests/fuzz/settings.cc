// Texts of settings (engine/settings.h): refused by an Error and without effect, or the same when
// they are shown and parsed again.
#include "engine/settings.h"

#include "input.h"

using namespace omnihvd;

FUZZ(in) {
  const Setting& setting = all_settings()[in.between(0, all_settings().size() - 1)];
  if (setting.name == "OMNIHVD_SECRET_FILE") return;  // reads a file
  const std::string given = in.text();
  Settings settings;
  const std::string before = setting.show(settings);
  if (given.find('\0') != std::string::npos) return;  // no environment has this
  if (!fuzz::accepted([&] { setting.parse(settings, given); })) {
    MUST(setting.show(settings) == before);
    return;
  }
  const std::string shown = setting.show(settings);
  if (shown.empty()) return;  // absent
  Settings again;
  setting.parse(again, shown);
  MUST(setting.show(again) == shown);
}
