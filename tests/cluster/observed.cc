// A driver that does one thing for others to look at: what its workers print, list, hold. Its first argument says which.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <argosy/argosy.h>

int Speak(std::string text) {
  std::printf("%s\n", text.c_str());
  return 0;
}

int Whisper(std::string text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::cout << "no newline";
  return 0;
}

int Flood(int megabytes) {
  std::string line(1023, 'x');
  for (int i = 0; i < megabytes * 1024; ++i) std::puts(line.c_str());
  std::puts("the last line");
  return 0;
}

int Die(std::string text) {
  std::printf("%s\n", text.c_str());
  std::abort();
}

class Speaker {
 public:
  explicit Speaker(std::string word) : word_(std::move(word)) { std::printf("made %s\n", word_.c_str()); }
  int Say(int n) {
    std::printf("%s %d\n", word_.c_str(), n);
    return n;
  }

 private:
  std::string word_;
};

namespace {

void Prints() {
  argosy::Get(argosy::Task<Speak>().Submit(std::string("from here")));
  argosy::Get(argosy::Task<Whisper>().Submit(std::string("an error")));
  argosy::Get(argosy::Task<Speak>({.resources = {{"away", 1}}}).Submit(std::string("from there")));
  argosy::Actor<Speaker> speaker = argosy::Spawn<Speaker>({}, std::string("number"));
  for (int i = 0; i < 3; ++i) argosy::Get(speaker.Call<&Speaker::Say>(i));
  try {
    argosy::Get(argosy::Task<Die>({.max_retries = 0}).Submit(std::string("last words")));
  } catch (const argosy::Error&) {
    std::puts("it died");
  }
}

}  // namespace

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  std::string what = argc > 1 ? argv[1] : "";
  if (what == "prints") Prints();
  if (what == "flood") argosy::Get(argosy::Task<Flood>().Submit(std::atoi(argv[2])));
  std::puts("done");
  return 0;
}
