--- The chats of this editor: a session each, with its records as the daemon has them, its turn and its view.
---
--- The daemon's records are the truth. The view is made of them, of the turn that runs, and of remarks; events say
--- when to read again.

local follow = require("ollm.follow")
local rpc = require("ollm.rpc")
local text = require("ollm.text")
local transcript = require("ollm.transcript")
local turns = require("ollm.turn")
local ui = require("ollm.ui")
local views = require("ollm.view")
local winbar = require("ollm.winbar")

local M = {}

local uv = vim.uv

--- Records that are loaded when a chat opens, and with each request for earlier ones.
local N_RECORDS = 200
--- Records of a page.
local PAGE = 1000
--- The time between two drawings of the bar while a percentage grows.
local BAR_MS = 250

--- All chats, and the one that was used last.
local chats, latest = {}, nil
local stop_listening

---@class ollm.Chat
---@field session table? the session as the daemon describes it; nil before the first message
---@field records table[] the loaded records of the active path
---@field from integer the position from which records are loaded, as `session.get` takes it
---@field turn ollm.Turn? the turn of this client
---@field foreign ollm.Turn? the turn of another client
---@field is_forgotten boolean? whether the buffer of the chat is gone
---@field remarks {line: string, group: string}[] what is shown below the conversation until the next message
---@field status table? the last `context.status` or usage
---@field view ollm.View
local Chat = {}
Chat.__index = Chat

--- Returns the canonical path of the project: the directory of the editor.
---@return string?
function M.project()
  return uv.fs_realpath(vim.fn.getcwd())
end

--- Creates a chat without a session.
---@return ollm.Chat
function M.new()
  local chat = setmetatable({
    records = {}, from = -N_RECORDS, remarks = {}, after_update = {}, model = require("ollm").config.model,
  }, Chat)
  chat.view = views.new({
    send = function(message)
      return chat:send(message)
    end,
    stop = function()
      return chat:stop()
    end,
    earlier = function()
      chat:load_earlier()
    end,
    closed = function()
      chat:forget()
    end,
  })
  chats[#chats + 1] = chat
  latest = chat
  stop_listening = stop_listening or rpc.listen(M.on_event)
  chat:render()
  return chat
end

--- Returns the chat of a buffer, or nil.
---@param buffer integer
---@return ollm.Chat?
function M.of_buffer(buffer)
  for _, chat in ipairs(chats) do
    if chat.view.buffer == buffer or chat.view.prompt == buffer then
      return chat
    end
  end
end

--- Returns the chat of the current buffer, else the one that was used last, or nil.
---@return ollm.Chat?
function M.current()
  latest = M.of_buffer(vim.api.nvim_get_current_buf()) or latest
  return latest
end

--- Returns the chat of a session, or nil.
---@param session_id string
---@return ollm.Chat?
function M.of_session(session_id)
  for _, chat in ipairs(chats) do
    if chat:id() == session_id then
      return chat
    end
  end
end

--- Returns the chat of a session, which is made and loaded if it does not exist yet.
---@param session_id string
---@return ollm.Chat
function M.for_session(session_id)
  local chat = M.of_session(session_id)
  if not chat then
    chat = M.new()
    chat.session = { sessionId = session_id, title = "" }
    chat:reload()
    follow.join(chat)
  end
  latest = chat
  return chat
end

--- Shows the chat and moves to its prompt.
function Chat:open()
  latest = self
  self.view:open(require("ollm").config)
  self:draw_bar()
  if not self.session and not self.is_introduced then
    self:introduce()
  end
end

--- Asks which model a new session gets, so that a person sees before the first message what does not work.
function Chat:introduce()
  self.is_introduced = true
  rpc.call("model.show", { model = self.model }, nil, function(err, result)
    if self.session or self.turn then
      return
    elseif err then
      return self:remark_error(err)
    end
    self.default_model = result.model.model
    self:draw_bar()
  end)
end

--- Ends a chat whose buffer is gone.
function Chat:forget()
  self.is_forgotten = true
  if self.turn then
    self:stop()
  end
  follow.end_foreign(self)
  chats = vim.tbl_filter(function(chat)
    return chat ~= self
  end, chats)
  latest = latest ~= self and latest or chats[#chats]
  if #chats == 0 and stop_listening then
    stop_listening()
    stop_listening = nil
  end
end

---@return string? session_id
function Chat:id()
  return self.session and self.session.sessionId
end

--- Runs a function with the id of the session, which is created as a draft if there is none yet.
---@param callback fun(err: table?, session_id: string?)
function Chat:with_session(callback)
  if self.session then
    return callback(nil, self:id())
  end
  local params = { projectPath = M.project(), model = self.model }
  rpc.call("session.create", params, nil, function(err, result)
    if err then
      return callback(err)
    end
    -- Another call may have created the session meanwhile.
    self.session = self.session or result.session
    callback(nil, self:id())
  end)
end

--------------------------------------------------------------------------------------------------------------------
-- Records

--- Reads pages of the active path from a position on.
local function read_pages(session_id, from, limit, records, callback)
  local params = { sessionId = session_id, from = from, limit = limit, branch = "active" }
  rpc.call("session.get", params, nil, function(err, page)
    if err then
      return callback(err)
    end
    vim.list_extend(records, page.records)
    if page.nextFrom then
      return read_pages(session_id, page.nextFrom, PAGE, records, callback)
    end
    callback(nil, records, page.session)
  end)
end

--- Takes what the daemon returned, and shows it.
function Chat:take(records, session)
  self.records = records
  self.session = session
  self.model = session.model or self.model
  -- The end of a turn shows the records itself.
  if not self.turn or self.turn.state ~= "ended" then
    self:render()
    self:refresh_status()
  end
end

--- Reads all shown records again. The callback gets an error or nothing; without one, an error is shown.
---@param callback? fun(err: table?)
function Chat:reload(callback)
  callback = callback or function(err)
    if err then
      self:remark_error(err)
    end
  end
  if not self.session then
    return callback(nil)
  end
  local limit = self.from < 0 and math.min(-self.from, PAGE) or PAGE
  read_pages(self:id(), self.from, limit, {}, function(err, records, session)
    if err then
      return callback(err)
    end
    self:take(records, session)
    callback(nil)
  end)
end

--- Reads the records behind the last known one. Calls while one runs are one more call.
---@param callback? fun(err: table?)
function Chat:update(callback)
  table.insert(self.after_update, callback)
  if self.is_updating then
    self.is_stale = true
    return
  end
  self.is_updating, self.is_stale = true, false
  local known = self.records
  local last = known[#known]
  -- Directly behind a record, a page is empty; without records, all are read.
  local from = last and last.seq + 1 or 0
  read_pages(self:id(), from, PAGE, {}, function(err, records, session)
    self.is_updating = false
    if not err and self.records == known then
      local all = vim.list_extend(vim.list_slice(known), records)
      self.grown = { from = known, to = all }
      self:take(all, session)
    end
    -- The records were read anew meanwhile, or there may be more of them.
    if not err and (self.is_stale or self.records[#self.records] ~= (records[#records] or last)) then
      return self:update()
    end
    local callbacks = self.after_update
    self.after_update = {}
    for _, done in ipairs(callbacks) do
      done(err)
    end
  end)
end

--- Loads records before those that are shown, so many more or all from a record on.
---@param seq? integer
---@param callback? fun(err: table?)
function Chat:load_earlier(seq, callback)
  local first = self.records[1]
  if not first or first.seq == 0 then
    return callback and callback(nil)
  end
  self.from = seq and math.max(0, seq - 1) or math.max(0, first.seq - N_RECORDS)
  self:reload(callback)
end

--- Moves to a record, which is loaded if need be. The callback gets whether the active path has it.
---@param seq integer
---@param callback fun(is_shown: boolean)
function Chat:go_to(seq, callback)
  local first = self.records[1]
  local function move()
    callback(self.view:go_to(seq))
  end
  if first and first.seq > seq then
    return self:load_earlier(seq, move)
  elseif not first then
    return self:reload(move)
  end
  move()
end

--- Asks how full the window is, unless a turn says so.
function Chat:refresh_status()
  local is_answering = self.turn and self.turn.state ~= "ended"
  if not self.session or (is_answering and self.status) then
    return
  end
  rpc.call("context.status", { sessionId = self:id() }, nil, function(err, status)
    if not err then
      self.status = status
      self.default_model = status.model or self.default_model
      self:draw_bar()
    end
  end)
end

--------------------------------------------------------------------------------------------------------------------
-- Drawing

--- Adds the part of an answer that has arrived.
local function add_answer(page, model, thinking, answer)
  if thinking == "" and answer == "" then
    return
  end
  transcript.heading(page, model or "Assistant", "", "OllmAssistant")
  if thinking ~= "" then
    transcript.thinking(page, thinking, answer == "")
  end
  if answer ~= "" then
    transcript.markdown(page, answer, true)
  end
end

--- Returns the page of the records, which is kept: most of them stay the same.
function Chat:records_page()
  local kept, grown = self.kept, self.grown or {}
  local is_same = kept and kept.records == self.records
  local has_grown = kept and kept.records == grown.from and self.records == grown.to
  if not is_same and not has_grown then
    kept = { records = {}, page = transcript.page() }
    local first = self.records[1]
    if first and first.seq > 0 then
      transcript.note(kept.page, "Earlier messages are not shown; gE loads them.")
    end
  end
  for index = #kept.records + 1, #self.records do
    transcript.record(kept.page, self.records[index], self:id())
  end
  kept.records = self.records
  self.kept = kept
  return transcript.copy(kept.page)
end

--- Returns what the view shows: the records, then the turn that runs, then remarks.
function Chat:page()
  local page = self:records_page()
  local last = self.records[#self.records]
  local turn = self.turn
  if turn then
    local is_recorded = turn.seq and last and last.seq >= turn.seq
    local is_answered = last and last.seq > (turn.seq or turn.base) and self:last_role() == "assistant"
    if turn.message and not is_recorded then
      transcript.heading(page, "You", "", "OllmUser")
      transcript.markdown(page, turn.message)
    end
    if not is_answered then
      add_answer(page, turn.model, table.concat(turn.thinking), table.concat(turn.answer))
    end
  elseif self.foreign then
    add_answer(page, self.foreign.model, table.concat(self.foreign.thinking), table.concat(self.foreign.answer))
  end
  if #page.lines == 0 and #self.remarks == 0 then
    transcript.note(page, "A new session. Write below; :help ollm explains the rest.")
  end
  for _, remark in ipairs(self.remarks) do
    transcript.note(page, remark.line, remark.group, remark.is_joined)
  end
  return page
end

--- Returns the role of the newest message, or nil.
function Chat:last_role()
  for index = #self.records, 1, -1 do
    if self.records[index].type == "message" then
      return self.records[index].message.role
    end
  end
end

--- Shows what is known now.
function Chat:render()
  self.view:show(self:page())
  self:draw_bar()
end

--- Adds a remark below the conversation.
---@param line string
---@param group? string
function Chat:remark(line, group)
  table.insert(self.remarks, { line = text.one_line(line), group = group or "OllmDim" })
  self:render()
end

--- Adds an error with its hint below the conversation.
---@param err table
function Chat:remark_error(err)
  for index, line in ipairs(ui.error_lines(err)) do
    local group = index == 1 and "OllmError" or "OllmHint"
    table.insert(self.remarks, { line = line, group = group, is_joined = index > 1 })
  end
  self:render()
end

--- Returns the phase to show: that of the turn, of another client's turn, or of a compaction.
function Chat:phase()
  if self.turn and self.turn.state ~= "ended" then
    return self.turn.phase
  elseif self.foreign then
    return { name = "another client asks" }
  end
  return self.compaction
end

--- Draws the bar, and again while a percentage grows.
function Chat:draw_bar()
  local phase = self:phase()
  local info = {
    title = self.session and self.session.title, model = self.model or self.default_model,
    status = self.status, phase = phase, problem = self.problem,
  }
  local now = uv.hrtime() / 1e6
  self.view:set_bar(function(width)
    return winbar.line(info, width, now)
  end)
  local grows = phase and phase.name == "reading" and phase.expectedMs
  if grows and not self.is_bar_planned then
    self.is_bar_planned = true
    vim.defer_fn(function()
      self.is_bar_planned = false
      self:draw_bar()
    end, BAR_MS)
  end
end

--------------------------------------------------------------------------------------------------------------------
-- Turns of this client

--- Sends a message; nil asks for an answer to the recorded conversation. Returns false if a turn runs already.
---@param message string?
---@param on_accepted? fun(err: table?)
---@return boolean
function Chat:send(message, on_accepted)
  if self.turn then
    ui.error({ message = "the model is still answering", hint = ":Ollm stop" })
    return false
  end
  self.remarks = {}
  self.turn = turns.new(message and text.utf8(message), self:turn_hooks())
  self.turn.base = #self.records > 0 and self.records[#self.records].seq or -1
  self:begin(on_accepted or function() end)
  self.view:go_to_end()
  self:render()
  return true
end

--- Begins the turn.
function Chat:begin(on_accepted)
  local turn = self.turn
  self:with_session(function(err, session_id)
    if self.turn ~= turn then
      return
    end
    err = err or (turn.is_stopped and { kind = "canceled", message = "stopped before the message was sent" } or nil)
    if err then
      self:refuse(turn, err)
      return on_accepted(err)
    end
    turn:start(session_id, function(problem)
      if problem and self:may_repeat(problem) then
        turn.repeated[problem.kind] = true
        return self:begin(on_accepted)
      end
      if problem then
        self:refuse(turn, problem)
      end
      on_accepted(problem)
    end)
  end)
end

--- Returns whether a turn that did not begin is begun again, once: because a restarted daemon has forgotten the draft,
--- or because the connection was lost. The key of the turn keeps the daemon from recording the message twice.
function Chat:may_repeat(problem)
  if self.turn.repeated[problem.kind] or self.turn.is_stopped then
    return false
  elseif problem.kind == "sessionNotFound" and #self.records == 0 then
    self.session = nil
    return true
  end
  return problem.kind == "closed"
end

--- Ends a turn that did not begin: the message returns to the prompt.
function Chat:refuse(turn, err)
  if self.turn ~= turn then
    return
  end
  self.turn = nil
  if err.kind == "closed" or err.kind == "timeout" then
    -- Perhaps the message was recorded. The records say so once they can be read.
    if self.unsure and self.unsure.message then
      self.view:give_back(self.unsure.message)
    end
    self.unsure = turn
  elseif turn.message then
    self.view:give_back(turn.message)
  end
  if err.kind == "timeout" then
    self:update(function()
      self:settle_unsure()
    end)
  end
  -- Other conflicts, such as files that are being put back, have a holder that is no turn.
  if err.kind == "conflict" and tostring((err.data or {}).holder):find(" since ", 1, true) then
    follow.join(self)
  end
  self:remark_error(err)
end

--- Returns a message to the prompt if the daemon did not record it before the connection was lost.
function Chat:settle_unsure()
  local turn = self.unsure
  self.unsure = nil
  if not turn or not turn.message then
    return
  end
  for _, record in ipairs(self.records) do
    if record.key == turn.key then
      return self:remark("The message is recorded; :Ollm retry asks for its answer.")
    end
  end
  self.view:give_back(turn.message)
end

function Chat:turn_hooks()
  return {
    accepted = function()
      self.model = self.turn and self.turn.model or self.model
      self:make_current()
      self:draw_bar()
    end,
    changed = function()
      self:draw_bar()
    end,
    remark = function(line)
      self:remark(line)
    end,
    usage = function(usage)
      self.status = { contextTokens = usage.contextTokens or 0, promptLimit = usage.promptLimit }
      self:draw_bar()
    end,
    shown = function(kind, piece)
      self:show_piece(kind, piece)
    end,
    ended = function(err)
      self:end_turn(err)
    end,
  }
end

--- Shows a piece of the answer: at the end of the view, or by a new page if the answer or another part begins.
function Chat:show_piece(kind, piece)
  local turn = self.turn or self.foreign
  if not turn then
    return
  end
  if turn.shown_kind == kind and #self.remarks == 0 then
    return self.view:append(piece, kind == "thinking" and "> " or "")
  end
  turn.shown_kind = kind
  self:render()
end

--- Replaces the answer that arrived by the record of it.
function Chat:end_turn(err)
  local turn = self.turn
  if err and (err.kind == "closed" or err.kind == "garbage") then
    self:remark_error({ message = "the daemon ended during this answer", hint = ":Ollm retry" })
    -- The part that has arrived stays on the screen until the records can be read again.
    self.turn = nil
    return self:draw_bar()
  end
  if err and not (turn.is_stopped and err.kind == "canceled") then
    self:remark_error(err)
  elseif err and not (err.data or {}).seq then
    self:remark("Stopped before the answer began.")
  end
  self:update(function()
    self.turn = nil
    self:render()
    self:refresh_status()
  end)
end

--- Stops the answer. Returns false if none is running.
---@return boolean
function Chat:stop()
  if self.turn then
    self.turn:stop(self:id())
    return true
  elseif self.foreign then
    rpc.call("chat.cancel", { sessionId = self:id() }, nil, ui.reporting(function() end))
    return true
  end
  return false
end

--- Makes the session the current one of its project, as other clients do when a session continues there.
function Chat:make_current()
  if self.is_current or not self.session or not self.session.projectPath then
    return
  end
  self.is_current = true
  local params = { projectPath = self.session.projectPath, sessionId = self:id() }
  rpc.call("session.setCurrent", params, nil, function() end)
end

--------------------------------------------------------------------------------------------------------------------
-- Events

--- Passes an event of the daemon on to the chats.
---@param event table
function M.on_event(event)
  for _, chat in ipairs(vim.list_slice(chats)) do
    follow.on_event(chat, event)
  end
end

return M
