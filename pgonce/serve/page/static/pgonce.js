// The one script: theme, keys, the filter as it is typed, and what is new without a reload.
"use strict";
(() => {
  const root = document.documentElement;
  const remembered = () => { try { return localStorage.getItem("pgonce-theme"); } catch { return null; } };
  if (remembered()) root.dataset.theme = remembered();

  document.addEventListener("DOMContentLoaded", () => {
    const live = document.getElementById("live");
    const state = document.getElementById("live-state");
    const keys = document.getElementById("keys");
    const input = document.getElementById("q");
    const title = document.title;
    let selected = "";
    let asked = 0;
    let pressed = false;
    let late = false;

    const rows = () => [...live.querySelectorAll("tr.row")];
    const select = (row) => {
      live.querySelector("tr.selected")?.classList.remove("selected");
      selected = row ? row.id : "";
      row?.classList.add("selected");
      row?.scrollIntoView({ block: "nearest" });
    };
    const open = (row) => row?.querySelector("a")?.click();

    const localTimes = () => {
      for (const time of live.querySelectorAll("time.tick")) {
        const day = time.classList.contains("day") ? { month: "2-digit", day: "2-digit" } : {};
        time.textContent = new Date(time.dateTime).toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit" });
      }
      for (const time of live.querySelectorAll("time[title]")) time.title = new Date(time.dateTime).toLocaleString();
    };

    // The part itself says what was seen of the ledger; if a proxy answers in its place, nothing does.
    const tell = (seen) => {
      const unreadable = seen && "trouble" in seen.dataset;
      state.className = seen && !unreadable ? "live-state on" : "live-state off";
      state.textContent = unreadable ? "Postgres cannot be read" : seen ? "live" : "pgonce serve does not answer";
      if (seen) document.title = (seen.dataset.critical === "0" ? "" : `(${seen.dataset.critical}) `) + title;
    };

    // The server makes the markup; a selection of text is left alone until it is gone.
    const refresh = async () => {
      const mine = ++asked;
      let parsed = null;
      try {
        const answer = await fetch(location.href, { headers: { "x-pgonce-part": "live" } });
        parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      } catch { /* told as an answer in which nothing was seen */ }
      if (mine !== asked) return;
      const seen = parsed?.getElementById("seen");
      tell(seen);
      if (!seen || (!window.getSelection().isCollapsed && live.contains(window.getSelection().anchorNode))) return;
      late = pressed;
      if (pressed) return;
      const opened = [...live.querySelectorAll("details[open][id]")].map((one) => one.id);
      const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      live.replaceChildren(...parsed.body.childNodes);
      for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
      if (focused) [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
      if (selected) document.getElementById(selected)?.classList.add("selected");
      localTimes();
    };

    // A browser sees a click only if the pointer goes down and up on one element, so none is replaced in between.
    live.addEventListener("pointerdown", () => { pressed = true; });
    for (const end of ["pointerup", "pointercancel"]) {
      document.addEventListener(end, () => setTimeout(() => { pressed = false; if (late) refresh(); }));
    }

    // The next time is set once the answer is there, so that a slow server is asked less often.
    const every = 1000 * document.body.dataset.every;
    const again = async () => {
      try { if (!document.hidden) await refresh(); } finally { setTimeout(again, every); }
    };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

    const theme = () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("pgonce-theme", root.dataset.theme); } catch { /* for this page alone */ }
    };
    document.getElementById("theme").addEventListener("click", theme);
    document.getElementById("help").addEventListener("click", () => keys.showModal());

    let typed = 0;
    const filter = () => {
      const place = new URL(location.href);
      if (input.value.trim()) place.searchParams.set("q", input.value.trim()); else place.searchParams.delete("q");
      history.replaceState(null, "", place);
      refresh();
    };
    input?.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(filter, 120); });
    document.getElementById("filter")?.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typed);
      filter();
      input.blur();
      select(rows()[0]);
    });

    live.addEventListener("click", (event) => {
      const row = event.target.closest("tr.row");
      if (row && !event.target.closest("a") && window.getSelection().isCollapsed) open(row);
    });

    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
      if (event.target === input) {
        if (event.key === "Escape") { input.value = ""; filter(); input.blur(); }
        return;
      }
      const all = rows();
      const at = all.findIndex((row) => row.id === selected);
      const act = {
        j: () => select(all[Math.min(at + 1, all.length - 1)]),
        k: () => select(all[Math.max(at - 1, 0)]),
        Enter: () => { if (document.activeElement === document.body) open(all[at]); },
        "/": () => { event.preventDefault(); if (input) { input.focus(); input.select(); } else location.href = document.body.dataset.home; },
        Escape: () => {
          if (!input) document.getElementById("back")?.click();
          else if (input.value) { input.value = ""; filter(); } else select(null);
        },
        t: theme,
        "?": () => keys.showModal(),
      }[event.key];
      act?.();
    });

    localTimes();
    tell(document.getElementById("seen"));
    setTimeout(again, every);
  });
})();
