extern "C" int ArgosyTestNumber() { return 42; }
