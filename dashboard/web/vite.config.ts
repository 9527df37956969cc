import { defineConfig } from "vite";

export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    target: "es2020",
    assetsInlineLimit: 0, // the page's policy allows nothing inline
    modulePreload: { polyfill: false },
  },
});
