"use strict";
// A slider shows one frame of a film, a scale, at a time; without this script all are shown.
document.querySelectorAll(".film").forEach((film) => {
  const frames = [...film.querySelectorAll(".frame")];
  const slider = film.querySelector("input");
  const label = film.querySelector("output");
  const show = () => {
    const chosen = Number(slider.value);
    frames.forEach((frame, i) => frame.classList.toggle("off", i !== chosen));
    label.textContent = frames[chosen].dataset.label;
  };
  slider.addEventListener("input", show);
  film.classList.add("ready");
  show();
});
